(() => {
  "use strict";

  const MOST = 10; // curves in one figure: as many colours as there are
  const PARTS = { step_size: "step size", decay: "weight decay", work: "optimiser work", rounding: "rounding" };

  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("conserved-data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // Plotly reads a little HTML in texts, so that a name of the run must not look like any
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const place = (layer) => layer || "whole model";
  const exponent = (value) => (value === null || value === undefined ? "not evaluated" : value.toFixed(2));

  // ---------------------------------------------------------------- selection

  function fill(select, names, all) {
    const before = select.selectedOptions.length ? select.selectedOptions[0].textContent : null;
    const options = names.map((name, index) => new Option(name, String(index)));
    select.replaceChildren(...(all ? [new Option(all, "all")] : []), ...options);
    const same = [...select.options].find((option) => option.textContent === before);
    if (same) same.selected = true;
  }

  function layersOf(family) {
    return [...new Set(data.laws.filter((law) => family === null || law.family === family).map((law) => law.layer))];
  }

  function familyChosen() {
    const { value } = byId("select-family");
    return value === "all" ? null : data.families[Number(value)];
  }

  function selection() {
    const family = familyChosen();
    const layers = layersOf(family);
    const layer = byId("select-layer").value === "all" ? null : layers[Number(byId("select-layer").value)];
    const laws = data.laws.filter((law) => (family === null || law.family === family) && (layer === null || law.layer === layer));
    return { family, layer, laws, run: data.runs[Number(byId("select-run").value) || 0] };
  }

  /** At most MOST of the selected laws, those with the largest of the run's numbers, with a sentence on what was left out. */
  function pick({ family, laws }, numbers, what) {
    if (laws.length <= MOST) return { drawn: laws, note: "" };
    const size = (law) => numbers[law.position] ?? -1;
    const largest = (pool, count) => [...pool].sort((a, b) => size(b) - size(a)).slice(0, count);
    const families = [...new Set(laws.map((law) => law.family))];
    const pool = family === null ? families.flatMap((name) => largest(laws.filter((law) => law.family === name), 1)) : laws;
    const kept = new Set(largest(pool, MOST));
    const drawn = laws.filter((law) => kept.has(law));
    const which = family === null ? `the law with the largest ${what} of each of ${drawn.length} families` : `the ${drawn.length} laws with the largest ${what}`;
    return { drawn, note: `Drawn: ${which}, of ${laws.length} laws selected. Choose a family or layer to see others.` };
  }

  function labels({ family, layer }, laws) {
    const short = laws.map((law) => (family !== null ? place(law.layer) : layer !== null ? law.family : `${law.family} · ${place(law.layer)}`));
    return short.map((text, index) => (short.filter((other) => other === text).length > 1 ? laws[index].name : text));
  }

  // ---------------------------------------------------------------- drawing

  const narrow = () => window.innerWidth < 640;

  /** An axis; a logarithmic one that spans decades labels powers of ten only. */
  function axis(title, kind, values = []) {
    const seen = values.filter((value) => value !== null && value > 0);
    const decades = seen.length ? Math.log10(Math.max(...seen) / Math.min(...seen)) : 0;
    const ticks = kind === "log" && decades > 1.5 ? { dtick: Math.ceil(decades / 8), minor: { dtick: decades > 8 ? 1 : "D1", ticks: "outside", ticklen: 2, tickcolor: color("strong") } } : {};
    return {
      ...ticks,
      title: { text: title, standoff: 8 }, type: kind, exponentformat: "power", automargin: true, gridcolor: color("grid"), zeroline: kind === "linear",
      zerolinecolor: color("strong"), linecolor: color("strong"), tickcolor: color("strong"), showline: true, ticks: "outside", ticklen: 4,
    };
  }

  function layout(x, y, entries) {
    const width = Math.min(window.innerWidth, 1150) - 90;
    const widest = Math.max(...entries.map((text) => 7 * text.length + 50)); // Plotly sets the legend in columns of equal width
    const rows = Math.ceil(entries.length / Math.max(1, Math.floor(width / widest)));
    return {
      height: (narrow() ? 330 : 400) + 20 * rows,
      margin: { l: narrow() ? 50 : 70, r: 12, t: 16, b: 48 },
      paper_bgcolor: color("card"), plot_bgcolor: color("card"),
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow() ? 11 : 13, color: color("ink") },
      xaxis: x, yaxis: y,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      hoverlabel: { namelength: -1, bgcolor: color("card"), bordercolor: color("strong"), font: { color: color("ink") } },
      hovermode: "closest",
      dragmode: narrow() ? false : "zoom", // on a phone a finger on the figure must still scroll the page
      showlegend: true,
    };
  }

  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  /** Draw, or say why there is nothing to draw. */
  function draw(id, traces, figure, why, note) {
    const plot = byId(id);
    const nothing = !traces.some((trace) => trace.y.some((value) => value !== null));
    plot.hidden = nothing;
    byId(`${id}-empty`).hidden = !nothing;
    byId(`${id}-empty`).textContent = nothing ? why : "";
    byId(`${id}-note`).textContent = nothing ? "" : note;
    if (nothing) Plotly.purge(plot);
    else Plotly.react(plot, traces, figure, config);
  }

  const all = (traces) => traces.flatMap((trace) => trace.y);
  const positive = (values) => values.map((value) => (value > 0 ? value : null));
  const evaluated = (values) => values.some((value) => value !== null);
  const markers = (values) => (values.filter((value) => value !== null).length < 30 ? "lines+markers" : "lines");
  const sentences = (...parts) => parts.filter(Boolean).join(" ");
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  function curve(x, y, name, style, unit, more) {
    return {
      x, y, type: "scatter", mode: markers(y), name: plain(name), line: style, marker: { size: 5, color: style.color }, connectgaps: false,
      hovertemplate: `%{fullData.name}<br>step %{x}<br>%{y:.4e}${unit}<extra></extra>`, ...more,
    };
  }

  function drawDrift(chosen) {
    const { run } = chosen;
    const { drawn, note } = pick(chosen, run.final, "final drift");
    const steps = positive(run.steps);
    const names = labels(chosen, drawn);
    const traces = [];
    const predictions = [];
    drawn.forEach((law, index) => {
      const meta = { law: law.name };
      const seen = positive(run.curves.drift[law.position]);
      traces.push(curve(steps, seen, names[index], { color: color(`c${index % 10}`), width: 3 }, " units of h", { legendgroup: law.name, meta: { ...meta, column: "drift" } }));
      const said = positive(run.curves.predicted[law.position]);
      if (!evaluated(said)) return;
      const style = { color: color("ink"), width: 1.4, dash: "dash" };
      predictions.push(curve(steps, said, `${names[index]}: predicted`, style, " units of h", { mode: "lines", legendgroup: law.name, showlegend: false, meta: { ...meta, column: "predicted" } }));
    });
    if (predictions.length) {
      const key = { color: color("ink"), width: 1.4, dash: "dash" };
      traces.push(...predictions, curve([null], [null], "predicted", key, "", { mode: "lines", meta: { key: true } }));
    }
    const tally = (column, test) => drawn.filter((law) => test(run.curves[column][law.position])).length;
    const unseen = tally("drift", (values) => !evaluated(values));
    const still = tally("drift", (values) => evaluated(values) && !evaluated(positive(values)));
    const unsaid = tally("predicted", (values) => values[values.length - 1] === null);
    const zero = tally("predicted", (values) => values[values.length - 1] === 0);
    const text = sentences(
      note,
      unseen && `${count(unseen, "law")}: drift not evaluated.`,
      still && `${count(still, "law")}: drift exactly 0, which a logarithmic axis cannot show.`,
      unsaid && `${count(unsaid, "law")}: predicted drift not evaluated at the end.`,
      zero && `${count(zero, "law")}: predicted drift exactly 0 (off the logarithmic axis), so what is seen is rounding or work of the optimiser.`,
    );
    const figure = layout(axis("training step k (steps)", "log", steps), axis("drift ‖h(θₖ) − h(θ₀)‖ (units of h)", "log", all(traces)), [...names, "predicted"]);
    draw("plot-drift", traces, figure, sentences("Nothing to draw.", text), text);
    if (!byId("plot-drift").hidden) listenToKey(byId("plot-drift"));
  }

  /** A click on "predicted" in the legend hides or shows all dashed curves. */
  function listenToKey(plot) {
    plot.removeAllListeners("plotly_legendclick");
    plot.on("plotly_legendclick", (event) => {
      if (!plot.data[event.curveNumber].meta.key) return true;
      const dashed = plot.data.flatMap((trace, index) => (trace.meta.column === "predicted" ? [index] : []));
      Plotly.restyle(plot, { visible: plot.data[dashed[0]].visible === false }, dashed);
      return false;
    });
  }

  function showRows({ laws, run }) {
    for (const row of byId("table-final").tBodies[0].rows) {
      row.hidden = data.runs[Number(row.dataset.run)] !== run || !laws.some((law) => law.position === Number(row.dataset.law));
    }
  }

  function drawSplit({ laws, run }) {
    if (!byId("plot-split")) return; // no ledger, no split
    const ranked = [...laws].sort((a, b) => (run.final[b.position] ?? -1) - (run.final[a.position] ?? -1));
    const law = ranked[0];
    const logarithmic = byId("select-scale").value === "log";
    const column = (name) => run.curves[name][law.position];
    const traces = [];
    const missing = [];
    const add = (name, label, style) => {
      const values = column(name);
      const more = { legendgroup: name, meta: { law: law.name, column: name } };
      if (!evaluated(values)) { missing.push(label); return; }
      if (!logarithmic) { traces.push(curve(run.steps, values, label, style, " units of h", more)); return; }
      const minus = values.map((value) => (value < 0 ? -value : null));
      const plus = positive(values);
      if (evaluated(plus) || !evaluated(minus)) traces.push(curve(run.steps, plus, label, style, " units of h", { ...more, mode: "lines+markers", marker: { size: 3, color: style.color } }));
      if (evaluated(minus)) {
        const dotted = { ...style, dash: "dot" };
        traces.push(curve(run.steps, minus, `${label}, negative`, dotted, " units of h, negative", { ...more, mode: "lines+markers", marker: { size: 3, color: style.color, symbol: "circle-open" } }));
      }
    };
    if (law) {
      add("drift", "observed drift", { color: color("shade"), width: 7 });
      Object.entries(PARTS).forEach(([name, label], index) => add(name, label, { color: color(`c${index}`), width: 2 }));
    }
    const parts = traces.some((trace) => trace.meta.column !== "drift");
    const text = sentences(
      law && (laws.length > 1 ? `Shown: ${law.name}, the selected law with the largest final drift.` : `Shown: ${law.name}.`),
      run.ledger === "sampled" && "The parts are estimates: the ledger was sampled.",
      missing.length && `Not evaluated: ${missing.join(", ")}.`,
    );
    const figure = layout(axis("training step k (steps)", "linear"), axis(logarithmic ? "|part of the drift| (units of h)" : "part of the drift (units of h)", logarithmic ? "log" : "linear", all(traces)), ["observed drift", ...Object.values(PARTS)]);
    draw("plot-split", parts ? traces : [], figure, sentences(text, "There is no split to draw."), text);
  }

  function drawResidual(chosen) {
    const { run } = chosen;
    const { drawn, note } = pick(chosen, run.worst, "residual");
    const names = labels(chosen, drawn);
    const traces = drawn.map((law, index) => {
      const style = { color: color(`c${index % 10}`), width: 1.8 };
      return curve(run.steps, positive(run.curves.residual[law.position]), names[index], style, "", { meta: { law: law.name, column: "residual" } });
    });
    const unseen = drawn.filter((law) => !evaluated(run.curves.residual[law.position])).length;
    const zeros = drawn.filter((law) => run.curves.residual[law.position].includes(0)).length;
    const text = sentences(
      note,
      unseen && `${count(unseen, "law")}: residual not evaluated.`,
      zeros && `${count(zeros, "law")}: residual exactly 0 at some steps, which a logarithmic axis cannot show.`,
    );
    const something = traces.some((trace) => evaluated(trace.y));
    const bound = `bound for ${data.verdict.dtype}`;
    const ends = [run.steps[0], run.steps[run.steps.length - 1]];
    if (something) traces.push(curve(ends, [data.verdict.bound, data.verdict.bound], bound, { color: color("ink"), width: 1.4, dash: "dash" }, "", { mode: "lines", meta: { column: "bound" } }));
    const figure = layout(axis("training step k (steps)", "linear"), axis("residual (no unit)", "log", all(traces)), [...names, bound]);
    draw("plot-residual", traces, figure, sentences("Nothing to draw.", text), text);
  }

  function drawControl({ run }) {
    if (!byId("plot-control")) return;
    const pairs = [[data.control.law, "c1", "control (wrong on purpose)"], [data.control.compared, "c0", null]];
    const traces = pairs.filter(([position]) => position !== null).map(([position, hue, name]) => {
      const law = data.laws[position];
      const values = positive(run.curves.drift[position]);
      return curve(positive(run.steps), values, name ?? `${law.name} (exact)`, { color: color(hue), width: 3 }, " units of h", { meta: { law: law.name, column: "drift" } });
    });
    const figure = layout(axis("training step k (steps)", "log", run.steps), axis("drift (units of h)", "log", all(traces)), traces.map((trace) => trace.name));
    const missing = traces.filter((trace) => !evaluated(trace.y)).length;
    const text = sentences(data.runs.length > 1 && `Run: ${run.label}.`, data.control.compared === null && "No exact law's drift was evaluated to compare with.", missing && "A law without a curve has no drift above 0, or none was evaluated.");
    draw("plot-control", traces, figure, sentences("Nothing to draw.", text), text);
  }

  function drawScaling() {
    if (!byId("plot-scaling")) return;
    const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star", "pentagon", "hexagon"];
    const traces = [];
    const names = [];
    data.study.families.forEach((family, index) => {
      const points = family.points.filter(([rate, drift]) => rate > 0 && drift > 0).sort((a, b) => a[0] - b[0]);
      if (!points.length) return;
      const hue = color(`c${index % 10}`);
      const name = `${family.family} (${family.fit ? `slope ${exponent(family.fit.slope)}` : family.why})`;
      names.push(name);
      const more = { mode: "markers", marker: { size: 9, color: hue, symbol: symbols[index % 10] }, legendgroup: family.family, visible: family.rounding_only ? "legendonly" : true, meta: { family: family.family, column: "drift" } };
      more.hovertemplate = "%{fullData.name}<br>learning rate %{x}<br>final drift %{y:.4e} units of h<extra></extra>";
      traces.push(curve(points.map((point) => point[0]), points.map((point) => point[1]), name, { color: hue }, "", more));
      if (!family.fit) return;
      const ends = [points[0][0], points[points.length - 1][0]];
      const line = ends.map((rate) => 10 ** (family.fit.offset + family.fit.slope * Math.log10(rate)));
      const dash = family.family === "control" ? "dot" : "solid";
      traces.push(curve(ends, line, `${name}: fit`, { color: hue, width: 1.6, dash }, "", { mode: "lines", legendgroup: family.family, showlegend: false, hoverinfo: "skip", hovertemplate: null, visible: true, meta: { family: family.family, column: "fit" } }));
    });
    const rates = [...new Set(data.runs.map((run) => run.lr).filter((rate) => rate > 0))];
    const x = { ...axis("learning rate τ (no unit)", "log"), tickvals: rates, ticktext: rates.map(String) };
    const figure = layout(x, axis("final drift (units of h)", "log", all(traces.filter((trace) => trace.visible === true))), names);
    const left = data.study.families.length - names.length;
    const text = sentences(
      data.study.families.some((family) => family.rounding_only && family.points.length) && "Families whose drift is rounding are hidden at first, to show the slopes of the others: click their name to see them.",
      left && `${left} of ${data.study.families.length} families have no drift above 0 to draw, or none was evaluated: see the table.`,
    );
    draw("plot-scaling", traces, figure, sentences("Nothing to draw.", text), text);
  }

  // ---------------------------------------------------------------- events

  function drawSelected() {
    const chosen = selection();
    drawDrift(chosen);
    drawSplit(chosen);
    showRows(chosen);
    drawResidual(chosen);
    drawControl(chosen);
  }

  function drawAll() {
    drawSelected();
    drawScaling();
  }

  function start() {
    if (!data.laws.length) return;
    fill(byId("select-family"), data.families, "all families");
    fill(byId("select-run"), data.runs.map((run) => run.label), null);
    const first = data.families.findIndex((family) => data.laws.some((law) => law.family === family && law.exact && !law.linear && !law.control && data.runs[0].final[law.position] !== null));
    byId("select-family").value = first < 0 ? "all" : String(first);
    const refill = () => {
      fill(byId("select-layer"), layersOf(familyChosen()).map(place), "all layers");
    };
    refill();
    byId("select-family").addEventListener("change", () => { refill(); drawSelected(); });
    byId("select-layer").addEventListener("change", drawSelected);
    byId("select-run").addEventListener("change", drawSelected);
    byId("select-scale")?.addEventListener("change", () => drawSplit(selection()));
    drawAll();

    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    let wasNarrow = narrow();
    window.addEventListener("resize", () => {
      if (wasNarrow !== narrow()) { wasNarrow = narrow(); drawAll(); }
    });
    window.addEventListener("beforeprint", () => { document.documentElement.dataset.print = "yes"; drawAll(); });
    window.addEventListener("afterprint", () => { delete document.documentElement.dataset.print; drawAll(); });
  }

  start();
})();
