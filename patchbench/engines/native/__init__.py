"""The fast engine: computes of every patched run only what the patch can change.

Use:

    engine = ENGINES["native"]()
    rows = engine.run(loaded, interventions, batch)

| file       | what it does                                                           |
|------------|------------------------------------------------------------------------|
| engine     | one batch from interventions to rows                                   |
| work       | interventions × examples as arrays, and what each needs                |
| recording  | the unpatched runs: predictions, donors' activations, block outputs    |
| blocks     | resume at the patched layer: earlier blocks return what they gave      |
| states     | resume at the patched position: keys and values, or states, of the past |
| batching   | which work shares a forward                                            |
| schedule   | which forwards a batch comes to                                        |
| forecast   | the same without running them, for a dry run                           |
| forward    | one patched forward                                                    |
| rounds     | interventions take turns where what they need does not fit             |
| selfcheck  | each trick against the plain path, on the model at hand                |
"""

from patchbench.engines.native.engine import NativeEngine

__all__ = ["NativeEngine"]
