r"""A task's symbols as words of a pretrained model, in prompts that it can make sense of.

    BOS k17 v3 … EOS k17 v3        →        " which: area\n …\n which: area"

Every symbol becomes a word that is one token, so that roles survive; they are derived again in the
new coordinates, and every role's token is checked in every row and every corruption. A prediction
is always read out at the answer's position − 1: with a template that writes ":" or "->", that is
not the query itself.

Use:

    renderer = Renderer(task, tokenizer, RenderConfig(template="colon", shots=2),
                        max_positions=2048, seed=0)
    rows = renderer.dataset("test", 256)          # the schema of every task
    examples, counts = next(renderer.chunks("train"))      # as `Task.chunks` gives them
    renderer.text(rows[0]), renderer.notes
"""

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from patchbench.common import UserError, near_names
from patchbench.tasks.example import Corruption, Examples, features
from patchbench.tasks.fitting import longest_context, shorter_documents
from patchbench.tasks.layout import Layout, has_pairs, lay_out
from patchbench.tasks.ragged import Ragged, join, repeat, take
from patchbench.tasks.reading import read_examples
from patchbench.tasks.render_checks import check_rendered, count_other_tokens
from patchbench.tasks.shots import POOL_ROWS, choose_shots
from patchbench.tasks.templates import TEMPLATES, Pieces, find_pieces
from patchbench.tasks.words import Word, assign_words, find_words, known_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from patchbench.tasks.base import Counts, Task


@dataclass(frozen=True, kw_only=True)
class RenderConfig:
    """How a task is written.

    Attributes:
        template: see `patchbench.tasks.templates`; "auto" takes the task's own, or "colon" where
            the context consists of pairs, else "bare".
        shots: solved documents in front of each prompt.
    """

    template: Literal["auto", "bare", "colon", "arrow", "record", "sentence"] = "auto"
    shots: int = 0

    def __post_init__(self) -> None:
        if self.template not in ("auto", *TEMPLATES):
            raise UserError(
                f"unknown template {self.template!r}", near_names(self.template, TEMPLATES)
            )
        if isinstance(self.shots, bool) or not isinstance(self.shots, int) or self.shots < 0:
            raise UserError(f"shots={self.shots!r}", "an integer of at least 0 is needed")


class Renderer:
    """Writes a task's rows in the vocabulary of one tokenizer.

    Attributes:
        template: the template, "auto" resolved.
        words: symbol id → word.
        notes: what the user should know; `dataset` may add to them.

    Args:
        task: whose rows are rendered.
        tokenizer: the model's.
        config: how.
        max_positions: tokens that the model can read, None if it does not matter.
        vocab_size: token ids that the model knows, None if it does not matter.
        seed: of the shots.

    Raises:
        UserError: the tokenizer has too few words, or cannot write the template.
    """

    def __init__(
        self,
        task: "Task",
        tokenizer: "PreTrainedTokenizerBase",
        config: RenderConfig | None = None,
        *,
        max_positions: int | None = None,
        vocab_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._task, self._tokenizer = task, tokenizer
        self.config = config or RenderConfig()
        self._max_positions, self._vocab_size, self._seed = max_positions, vocab_size, seed
        words = find_words(tokenizer)
        own = {kind: known_words(tokenizer, texts) for kind, texts in task.words.items()}
        self._token_of, self.words = assign_words(task, words, own)
        words = [*words, *(word for found in own.values() for word in found)]
        self.template, self._pieces = self._find_template(words)
        self.notes: list[str] = list(self._pieces.notes)

    def _find_template(self, words: "Sequence[Word]") -> tuple[str, Pieces]:
        name = self.config.template
        if name == "auto":
            name = self._task.template
        if name == "auto":
            name = "colon" if has_pairs(self._task) else "bare"
        texts = set(self.words.values())
        used = [word for word in words if word.text in texts]
        return name, find_pieces(self._tokenizer, name, used, shots=self.config.shots)

    def dataset(self, split: str, n: int | None = None) -> "Dataset":
        """Return the rows of `task.dataset(split, n)`, rendered.

        The roles are those of the prompt: `bos` is −1 if the tokenizer has none, `divider` is the
        line break before the query, and prompts end with the answer.

        Raises:
            UserError: a prompt is too long for the model or has a token that it does not know, or
                there are too few shots.
            RenderingError: a role's token is not what it must be; a bug.
        """
        from datasets import Dataset, DatasetInfo

        from patchbench.tasks.builder import cache_names

        source = self._task.dataset(split, n)
        rendered = self._checked(read_examples(source))
        self._note_other_tokens(rendered)
        table = rendered.to_arrow().cast(features().arrow_schema)
        info = DatasetInfo(features=features(), description=source.info.description)
        names = cache_names(self._task, split, len(source))
        return Dataset(table, info=info, fingerprint=self.fingerprint(names["hash"]))

    def chunks(self, split: str) -> "Iterator[tuple[Examples, Counts]]":
        """Yield the endless chunks of `task.chunks(split)`, rendered; errors as of `dataset`."""
        for examples, counts in self._task.chunks(split):
            if len(examples):
                yield self._checked(examples), counts

    def text(self, row: "Mapping[str, Any]") -> str:
        """Return the prompt of a rendered row as text: all that the model reads."""
        return str(self._tokenizer.decode(list(row["input_ids"])[: row["roles"]["answer"]]))

    def _checked(self, examples: Examples) -> Examples:
        rendered = self._render(examples)
        check_rendered(examples, rendered, self._token_of, self._pieces)
        if self._vocab_size is not None:
            versions = [rendered.tokens.values, *(t.tokens for t in rendered.corruptions.values())]
            largest = max(int(tokens.max()) for tokens in versions)
            if largest >= self._vocab_size:
                raise UserError(
                    f"the tokenizer gives token {largest}, the model knows {self._vocab_size}",
                    "pass the --tokenizer that the model was trained with",
                )
        return rendered

    def _render(self, examples: Examples) -> Examples:
        layout = lay_out(self._task, examples, self._pieces)
        front = self._front(examples, layout)
        starts = examples.tokens.starts

        def words(symbols: np.ndarray) -> np.ndarray:
            return self._token_of[symbols]

        def corrupted(twin: Corruption) -> Corruption:
            tokens = join(front, layout.write(words(twin.tokens))).values
            answer = np.where(twin.answer >= 0, words(twin.answer), -1)
            return Corruption(tokens=tokens, exists=twin.exists, answer=answer)

        roles = {
            role: layout.place[starts + position] + front.lengths
            for role, position in examples.roles.items()
            if role != "bos"
        }
        roles["bos"] = np.full(len(examples), self._pieces.bos)
        tokens = join(front, layout.write(words(examples.tokens.values)))
        return replace(
            examples,
            tokens=tokens,
            parents=_move_parents(examples, layout, front, tokens),
            roles=roles,
            candidates=examples.candidates.with_values(words(examples.candidates.values)),
            corruptions={name: corrupted(twin) for name, twin in examples.corruptions.items()},
            metadata={**examples.metadata, "distance": np.abs(roles["value"] - roles["key"])},
            labels=None,  # a prompt ends with the answer, which alone is to be learnt
        )

    def _front(self, examples: Examples, layout: Layout) -> Ragged:
        """Return what stands before each document: the prefix and the shots.

        Raises:
            UserError: with the document the longest is too long for the model.
        """
        rows, shots = len(examples), self.config.shots
        fronts = [repeat(self._pieces.prefix, rows)]
        if shots:
            pool = read_examples(self._task.dataset("train", POOL_ROWS))
            chosen = choose_shots(
                pool, examples, shots, seed=self._seed, pairs=has_pairs(self._task)
            )
            solved = lay_out(self._task, pool, self._pieces).write(
                self._token_of[pool.tokens.values]
            )
            separator = repeat(self._pieces.separator, rows)
            for shot in chosen.T:
                fronts.append(join(fronts[-1], take(solved, shot), separator))
        if self._max_positions is not None:
            # With 0, 1, … shots.
            longest = [int((front.lengths + layout.skeleton.lengths).max()) for front in fronts]
            if longest[-1] > self._max_positions:
                raise UserError(
                    f"the longest prompt has {longest[-1]} tokens, the model reads "
                    f"{self._max_positions}",
                    self._largest_that_fits(longest, self._max_positions, examples),
                )
        return fronts[-1]

    def _largest_that_fits(self, longest: list[int], room: int, examples: Examples) -> str:
        """Return the remedy, given the longest prompt with 0, 1, … shots."""
        if longest[0] <= room:
            shots = max(i for i, length in enumerate(longest) if length <= room)
            return f"the largest that fits is shots={shots}"
        return shorter_documents(
            self._task,
            excess=longest[0] - room,
            pair=2 + len(self._pieces.joiner) + len(self._pieces.line),
            context=longest_context(examples),
            where=" with shots=0" if len(longest) > 1 else "",
        )

    def _note_other_tokens(self, rendered: Examples) -> None:
        sampled, other = count_other_tokens(self._tokenizer, rendered, len(self._pieces.prefix))
        note = (
            f"{other} of {sampled} sampled prompts have other tokens when they are written as text "
            "and tokenised again"
        )
        if other and note not in self.notes:
            self.notes.append(note)

    def fingerprint(self, rows: str = "") -> str:
        """Return a name for how `rows` are written, the same in every process."""
        parts = (rows, self._pieces, self.config.shots, self._seed, self._token_of.tolist())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _move_parents(examples: Examples, layout: Layout, front: Ragged, tokens: Ragged) -> Ragged:
    """Return the parents' positions in the prompts, one for each token if the task has trees."""
    up = examples.parents
    if not len(up.values):
        return up
    moved = np.full(len(tokens.values), -1)
    child = np.flatnonzero(up.values >= 0)
    row = up.rows[child]
    before = front.lengths[row]
    parent = layout.place[up.starts[row] + up.values[child]]
    moved[tokens.starts[row] + before + layout.place[child]] = before + parent
    return tokens.with_values(moved)
