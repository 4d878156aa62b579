// Figures, sortable tables, and the keyboard's way to what the mouse does with them.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const said = document.getElementById("said");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const ink = () => (dark.matches ? "#e0e0e0" : "#333333");
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage"]],
    toImageButtonOptions: { format: "svg" },
  };

  // What a hover shows, without its markup.
  const plain = (text) =>
    new DOMParser().parseFromString(text.replaceAll("<br>", ", "), "text/html").body.textContent;

  // Every point of a figure that has something to say, in reading order.
  const points = (node) =>
    node.data.flatMap((trace, curveNumber) => {
      const texts = trace.hovertext;
      if (trace.hoverinfo === "skip" || texts === undefined || trace.visible === "legendonly") return [];
      if (!Array.isArray(texts)) return [{ curveNumber, pointNumber: 0, text: texts }];
      if (!Array.isArray(texts[0])) {
        return texts.map((text, pointNumber) => ({ curveNumber, pointNumber, text }));
      }
      return texts.flatMap((row, i) =>
        row
          .map((text, j) => ({ curveNumber, xval: j, yval: i, text }))
          .filter((_, j) => trace.z[i][j] !== null),
      );
    });

  const walk = (node) => {
    let at = -1;
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.target !== node || (!step && event.key !== "Escape")) return;
      event.preventDefault();
      const all = points(node);
      if (!step || !all.length) return Plotly.Fx.unhover(node);
      at = at < 0 && step < 0 ? all.length - 1 : (at + step + all.length) % all.length;
      const { text, ...point } = all[at];
      Plotly.Fx.hover(node, [point], node.layout.ternary ? "ternary" : "xy");
      said.textContent = plain(text);
    });
    node.addEventListener("blur", () => Plotly.Fx.unhover(node));
  };

  // A name in the legend hides and shows its line.
  const legend = (node) => {
    for (const entry of node.querySelectorAll(".legend .traces")) {
      const toggle = entry.querySelector(".legendtoggle");
      const trace = entry.__data__?.[0]?.trace;
      if (!toggle || !trace) continue;
      toggle.setAttribute("tabindex", "0");
      toggle.setAttribute("role", "button");
      toggle.setAttribute("aria-label", plain(trace.name));
      toggle.setAttribute("aria-pressed", String(trace.visible !== "legendonly"));
      toggle.onkeydown = (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const together = node.data.flatMap((other, index) =>
          index === trace.index || (trace.legendgroup && other.legendgroup === trace.legendgroup) ? [index] : [],
        );
        const order = [...node.querySelectorAll(".legendtoggle")].indexOf(toggle);
        Plotly.restyle(node, { visible: trace.visible === "legendonly" ? true : "legendonly" }, together)
          .then(() => node.querySelectorAll(".legendtoggle")[order]?.focus());
      };
    }
  };

  // On a narrow page a legend has a line for each name or two: room for it, so that the plot keeps its own.
  const room = (node, figure) => {
    const names = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    const shown = figure.layout.showlegend !== false && node.clientWidth < 480;
    return shown ? 15 * Math.max(0, names - 3) : 0;
  };

  // What is drawn in the colour of text follows the page's.
  const inked = (data) => data.flatMap((trace, index) => (trace.type === "bar" && trace.error_y ? [index] : []));

  for (const [id, figure] of Object.entries(figures)) {
    const node = document.getElementById(id);
    figure.layout.height += room(node, figure);
    figure.layout.font.color = ink();
    for (const index of inked(figure.data)) figure.data[index].error_y.color = ink();
    // A finger that moves over a figure scrolls the page.
    if (matchMedia("(pointer: coarse)").matches) figure.layout.dragmode = false;
    Plotly.newPlot(node, figure.data, figure.layout, config).then(() => {
      walk(node);
      legend(node);
      node.on("plotly_afterplot", () => legend(node));
    });
  }
  dark.addEventListener("change", () => {
    for (const id of Object.keys(figures)) {
      const bars = inked(document.getElementById(id).data);
      Plotly.update(id, bars.length ? { "error_y.color": ink() } : {}, { "font.color": ink() }, bars);
    }
  });

  // A date or a version begins with a number and is none.
  const number = (text) => {
    const found = /^[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?(?=\s|$)/i.exec(text);
    return found ? parseFloat(found[0].replaceAll(",", "")) : null;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("th button").forEach((button, column) => {
      let up = false;
      button.addEventListener("click", () => {
        up = !up;
        const body = table.tBodies[0];
        const order = [...body.rows].sort((a, b) => {
          const [x, y] = [a, b].map((row) => row.cells[column].textContent.trim());
          const [m, n] = [number(x), number(y)];
          if ((x === "–") !== (y === "–")) return x === "–" ? 1 : -1; // what is missing, last
          return (m !== null && n !== null ? m - n : x.localeCompare(y)) * (up ? 1 : -1);
        });
        body.append(...order);
        table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
        button.parentElement.setAttribute("aria-sort", up ? "ascending" : "descending");
      });
    });
  }
})();
