// Charts: every <figure data-chart data-src="/series.json?…"> of a page, drawn by uPlot, all over the same time.
// The time lives in the page's address (range, or from and to); dragging picks a part, a double click goes back.
"use strict";

(() => {
  const LIVE_MS = 5000;
  const COLOURS = 8; // --c0 … --c7; from the ninth line on they come again, dashed
  const SHORTEST_S = 30;
  const TIME = ["range", "from", "to"];
  const charts = new Map(); // figure → chart

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const page = () => new URLSearchParams(location.search);
  const element = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

  // ---- the time shown ---------------------------------------------------------------------------------------------

  function follow(address) {
    // The address of data, for the time that the page shows now; a page that says none leaves the address as it is.
    const url = new URL(address, location.href);
    const said = page();
    if (!TIME.some((name) => said.get(name))) return url;
    for (const name of TIME) url.searchParams.delete(name);
    const fixed = said.get("from") || said.get("to");
    for (const name of fixed ? ["from", "to"] : ["range"]) {
      if (said.get(name)) url.searchParams.set(name, said.get(name));
    }
    return url;
  }

  function show(time, keep = true) {
    const url = new URL(location.href);
    for (const name of TIME) url.searchParams.delete(name);
    for (const [name, value] of Object.entries(time)) url.searchParams.set(name, value);
    if (keep) history.pushState({ charts: true }, "", url);
    tellTime();
    for (const chart of charts.values()) load(chart);
  }

  function tellTime() {
    const said = page();
    const fixed = Boolean(said.get("from") || said.get("to"));
    for (const link of document.querySelectorAll("a[data-range]")) {
      if (!fixed && said.get("range") === link.dataset.range) link.setAttribute("aria-current", "true");
      else if (fixed || said.get("range")) link.removeAttribute("aria-current");
    }
    for (const mark of document.querySelectorAll("[data-zoomed]")) mark.hidden = !fixed;
    for (const form of document.querySelectorAll("form[data-chart-form]")) {
      for (const name of TIME) if (form.elements[name]) form.elements[name].value = said.get(name) || "";
    }
    for (const link of document.querySelectorAll("a[data-follows]")) link.href = follow(link.href);
  }

  const iso = (seconds) => new Date(Math.round(seconds) * 1000).toISOString().replace(".000", "");

  function closer(from, to) {
    const missing = SHORTEST_S - (to - from);
    if (missing > 0) [from, to] = [from - missing / 2, to + missing / 2];
    show({ from: iso(from), to: iso(to) });
  }

  function back() {
    // The range that was shown before the look closer; the server's usual one if there was none.
    const range = charts.size && [...charts.values()].map((chart) => chart.range).find(Boolean);
    show(range ? { range } : {});
  }

  // ---- data -------------------------------------------------------------------------------------------------------

  async function load(chart, { onlyNew = false } = {}) {
    const url = follow(chart.figure.dataset.src);
    if (url.searchParams.get("range")) chart.range = url.searchParams.get("range");
    const known = onlyNew && chart.data && chart.data.times.length;
    if (known) {
      url.searchParams.set("after", String(chart.data.times[Math.max(0, chart.data.times.length - 3)]));
      if (chart.seen) url.searchParams.set("seen", chart.seen);
    }
    chart.asking?.abort();
    const asking = new AbortController();
    chart.asking = asking;
    try {
      const answer = await fetch(url, { signal: asking.signal, headers: { Accept: "application/json" } });
      if (answer.status === 204) return;
      const told = await answer.json();
      if (!answer.ok) return fail(chart, told.detail || "The data could not be read.");
      chart.seen = known ? told.seen : null;
      chart.data = known ? joined(chart.data, told) : told;
      if (chart.data === null) return void load(chart);
      draw(chart);
    } catch (error) {
      if (error.name !== "AbortError" && !onlyNew) fail(chart, "The data could not be fetched; reload the page to try again.");
    } finally {
      if (chart.asking === asking) chart.asking = null;
    }
  }

  function joined(old, news) {
    // Old points up to where the news begin, then the news; null where there are lines that the old ones lack.
    const known = new Set(old.series.map((line) => line.key));
    if (old.step_s !== news.step_s || news.series.some((line) => !known.has(line.key))) return null;
    if (!news.times.length) return { ...old, from: news.from, to: news.to, markers: markersOf(old, news) };
    const end = old.times.findIndex((time) => time >= news.times[0]);
    const kept = end < 0 ? old.times.length : end;
    const start = Math.max(0, old.times.findIndex((time) => time >= news.from));
    const join = (was, is) => [...was.slice(start, kept), ...is];
    const silent = { mean: Array(news.times.length).fill(null) };
    silent.low = silent.high = silent.mean; // a line without news: nothing was measured of it
    return {
      ...news,
      times: join(old.times, news.times),
      series: old.series.map((was) => {
        const is = news.series.find((line) => line.key === was.key) || silent;
        return { ...was, mean: join(was.mean, is.mean), low: join(was.low, is.low), high: join(was.high, is.high) };
      }),
      band: old.band || news.band ? bandOf(old, news, join) : null,
      markers: markersOf(old, news),
    };
  }

  const nothing = (count) => ({ expected: Array(count).fill(null), low: Array(count).fill(null), high: Array(count).fill(null) });

  function bandOf(old, news, join) {
    const [was, is] = [old.band || nothing(old.times.length), news.band || nothing(news.times.length)];
    return {
      expected: join(was.expected, is.expected),
      low: join(was.low, is.low),
      high: join(was.high, is.high),
    };
  }

  function markersOf(old, news) {
    const all = new Map([...old.markers, ...news.markers].map((mark) => [`${mark.time} ${mark.kind} ${mark.label}`, mark]));
    return [...all.values()].filter((mark) => (mark.until ?? mark.time) >= news.from);
  }

  function fail(chart, sentence) {
    if (chart.plot) return; // what is drawn stays; the next look may succeed
    chart.figure.dataset.state = "failed";
    chart.holder.replaceChildren(element("p", { className: "chart-empty", textContent: sentence, role: "status" }));
  }

  // ---- drawing ----------------------------------------------------------------------------------------------------

  function layout(data) {
    // uPlot's series and columns: what lies behind comes first
    const columns = [data.times];
    const series = [{}];
    const bands = [];
    const add = (values, options) => {
      columns.push(values);
      series.push({ points: { show: false }, ...options });
    };
    const area = (low, high, fill) => {
      add(high, { stroke: "transparent", width: 0 });
      add(low, { stroke: "transparent", width: 0 });
      bands.push({ series: [series.length - 2, series.length - 1], fill });
    };
    const alone = data.series.length === 1;
    if (data.band) {
      area(data.band.low, data.band.high, css("--band"));
      add(data.band.expected, { stroke: css("--info"), width: 1, dash: [4, 3] });
    } else if (alone) {
      area(data.series[0].low, data.series[0].high, css("--band"));
    }
    const first = series.length;
    data.series.forEach((line, at) => {
      const colour = alone && data.band ? css("--ink") : css(`--c${at % COLOURS}`);
      const dots = line.mean.filter((value) => value !== null).length < 3;
      add(line.mean, {
        label: line.label,
        stroke: colour,
        width: 1.6,
        dash: at >= COLOURS ? [6, 3] : undefined,
        points: { show: dots, size: 6, fill: colour },
      });
    });
    return { columns, series, bands, first };
  }

  const shape = (chart) =>
    JSON.stringify([
      chart.data.series.map((line) => line.key),
      Boolean(chart.data.band),
      chart.data.unit,
      getComputedStyle(document.documentElement).colorScheme,
    ]);

  function draw(chart) {
    const { data, figure, holder } = chart;
    const points = data.series.reduce((sum, line) => sum + line.mean.filter((value) => value !== null).length, 0);
    figure.dataset.points = points;
    figure.dataset.step = data.step_s;
    if (!points && !(data.band && data.band.expected.length)) {
      drop(chart);
      figure.dataset.state = "empty";
      holder.replaceChildren(element("p", { className: "chart-empty", textContent: "Nothing was measured in this time." }));
      chart.keys.replaceChildren();
      return;
    }
    const { columns, series, bands, first } = layout(data);
    chart.first = first;
    if (chart.plot && chart.shape === shape(chart)) {
      chart.plot.setData(columns, false);
      chart.plot.setScale("x", { min: data.from, max: data.to });
    } else {
      drop(chart);
      holder.replaceChildren();
      chart.shape = shape(chart);
      chart.plot = new uPlot(options(chart, series, bands), columns, holder);
    }
    figure.dataset.state = "drawn";
    name(chart);
    tellValues(chart);
  }

  function drop(chart) {
    chart.plot?.destroy();
    chart.plot = null;
  }

  function options(chart, series, bands) {
    const { data, holder, figure } = chart;
    const axis = { font: "11px Inter, sans-serif", stroke: css("--mut"), ticks: { show: false } };
    return {
      width: holder.clientWidth,
      height: Number(figure.dataset.height) || 190,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      legend: { show: false },
      cursor: {
        sync: { key: "page" },
        drag: { x: true, y: false, setScale: false },
        focus: { prox: 24 },
        points: { size: 7 },
        bind: { dblclick: () => () => void back() },
      },
      focus: { alpha: 0.35 },
      scales: { x: { time: true, range: () => [chart.data.from, chart.data.to] }, y: { range: (_, low, high) => vertical(data, low, high) } },
      axes: [
        { ...axis, size: 26, grid: { show: false }, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) },
        { ...axis, size: 52, grid: { stroke: css("--line"), width: 1 }, values: (_, ticks) => ticks.map((tick) => short(tick)) },
      ],
      series,
      bands,
      hooks: {
        drawAxes: [(plot) => shade(plot, chart.data.markers)],
        draw: [(plot) => mark(plot, chart.data.markers)],
        setCursor: [() => tellValues(chart)],
        setSelect: [
          (plot) => {
            if (plot.select.width < 6) return;
            const [from, to] = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            closer(from, to);
          },
        ],
      },
    };
  }

  function vertical(data, low, high) {
    if (low == null || high == null) return [0, 1];
    const counted = ["%", "/min", "ms", "GB", "MB/s", ""].includes(data.unit);
    const above = data.markers.length ? 0.22 : 0.08; // marks are labelled above the lines
    if (counted && low >= 0) return [0, high > 0 ? high * (1 + above) : 1];
    const span = Math.max(high - low, 4);
    return [low - span * 0.12, high + span * (above + 0.04)];
  }

  function clock(seconds, step) {
    const text = new Date(seconds * 1000).toISOString();
    const day = `${Number(text.slice(8, 10))} ${"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ")[Number(text.slice(5, 7)) - 1]}`;
    if (step >= 86400) return day;
    if (step < 60) return text.slice(11, 19);
    return text.slice(11, 16) === "00:00" ? day : text.slice(11, 16);
  }

  function short(value) {
    if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(4)} M`;
    if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toPrecision(4)} k`;
    return String(+value.toPrecision(6));
  }

  const TONES = { alert: "--bad", rollout: "--acc", event: "--mut" };

  function shade(plot, markers) {
    const { left, top, width, height } = plot.bbox;
    for (const each of markers) {
      if (each.until == null) continue;
      const from = Math.max(left, plot.valToPos(each.time, "x", true));
      const to = Math.min(left + width, plot.valToPos(each.until, "x", true));
      plot.ctx.save();
      plot.ctx.globalAlpha = 0.08;
      plot.ctx.fillStyle = css(TONES[each.kind] || "--mut");
      plot.ctx.fillRect(from, top, Math.max(0, to - from), height);
      plot.ctx.restore();
    }
  }

  function mark(plot, markers) {
    const { left, top, width, height } = plot.bbox;
    const scale = devicePixelRatio || 1;
    let free = -Infinity; // where the next label may begin
    plot.ctx.save();
    plot.ctx.font = `600 ${10.5 * scale}px Inter, sans-serif`;
    plot.ctx.textBaseline = "top";
    plot.ctx.textAlign = "left";
    for (const each of markers) {
      const x = Math.round(plot.valToPos(each.time, "x", true));
      if (x < left || x > left + width) continue;
      plot.ctx.strokeStyle = plot.ctx.fillStyle = css(TONES[each.kind] || "--mut");
      plot.ctx.lineWidth = scale;
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, top);
      plot.ctx.lineTo(x, top + height);
      plot.ctx.stroke();
      const text = `${clock(each.time, 60)} ${each.label}`;
      const room = left + width - x - 6 * scale;
      if (x < free || room < 40 * scale) continue;
      const fitting = cut(plot.ctx, text, room);
      plot.ctx.fillText(fitting, x + 4 * scale, top + 2 * scale);
      free = x + plot.ctx.measureText(fitting).width + 10 * scale;
    }
    plot.ctx.restore();
  }

  function cut(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let length = text.length;
    while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
    return `${text.slice(0, length)}…`;
  }

  // ---- words: the lines' names and values, and the chart's ----------------------------------------------------------

  const spokenValue = (data, value) => (value == null ? "–" : `${value.toFixed(data.digits)} ${data.unit}`.trim());

  function newest(line) {
    for (let at = line.mean.length - 1; at >= 0; at -= 1) if (line.mean[at] !== null) return line.mean[at];
    return null;
  }

  function name(chart) {
    const { data, figure, holder, keys } = chart;
    const title = figure.querySelector(".chart-name").textContent;
    const values = data.series.slice(0, 10).map((line) => `${line.label} ${spokenValue(data, newest(line))}`);
    const more = data.series.length > 10 ? ` and ${data.series.length - 10} more` : "";
    const simulated = data.series.some((line) => line.simulated) ? ", simulated" : "";
    const happened = data.markers.length ? ` Marked: ${data.markers.map((each) => each.label).join("; ")}.` : "";
    holder.setAttribute("role", "img");
    holder.tabIndex = 0;
    holder.setAttribute("aria-label", `Chart of ${title}${simulated}; newest: ${values.join(", ")}${more}.${happened}`);
    if (keys.dataset.shape === chart.shape) return;
    keys.dataset.shape = chart.shape;
    keys.replaceChildren(...data.series.map((line, at) => key(chart, line, at)));
    if (data.band) keys.append(element("li", { className: "key-band", innerHTML: "<i></i>expected band" }));
  }

  function shortened(series) {
    // Eight GPUs of one node are told apart by their numbers.
    const node = series[0].label.split(" GPU ")[0];
    const one = series.length > 1 && series.every((line) => line.label.startsWith(`${node} GPU `));
    return (label) => (one ? label.slice(node.length + 1) : label);
  }

  function key(chart, line, at) {
    const button = element("button", { type: "button", className: "key-line", title: `Show or hide ${line.label}` });
    button.setAttribute("aria-pressed", "true");
    const alone = chart.data.series.length === 1 && chart.data.band;
    const swatch = element("i", { className: `swatch ${alone ? "ink" : `c${at % COLOURS}`}${at >= COLOURS ? " dashed" : ""}` });
    button.append(swatch, element("span", { textContent: shortened(chart.data.series)(line.label) }), element("b", {}));
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      chart.plot?.setSeries(chart.first + at, { show: shown });
    });
    const item = element("li");
    item.append(button);
    return item;
  }

  function tellValues(chart) {
    const { plot, data, keys, figure } = chart;
    if (!plot || !data) return;
    const at = plot.cursor.left >= 0 ? plot.cursor.idx : null;
    figure.querySelector(".chart-at").textContent = at == null ? "" : `${iso(data.times[at]).slice(0, 19).replace("T", " ")} UTC`;
    const values = keys.querySelectorAll("b");
    data.series.forEach((line, place) => {
      const text = spokenValue(data, at == null ? newest(line) : line.mean[at]);
      if (values[place] && values[place].textContent !== text) values[place].textContent = text;
    });
  }

  // ---- keyboard: a chart in focus ---------------------------------------------------------------------------------

  document.addEventListener("keydown", (event) => {
    const chart = [...charts.values()].find((each) => each.holder === event.target);
    if (!chart?.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { plot, data } = chart;
    const last = data.times.length - 1;
    const at = plot.cursor.left >= 0 && plot.cursor.idx != null ? plot.cursor.idx : last;
    const middle = data.times[at];
    const span = data.to - data.from;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -last, End: last };
    if (event.key in steps) {
      const next = Math.min(last, Math.max(0, at + steps[event.key]));
      pointAt(data.times[next]);
    } else if (event.key === "+") closer(middle - span / 4, middle + span / 4);
    else if (event.key === "-" || event.key === "0") back();
    else return;
    event.preventDefault();
  });

  function pointAt(time) {
    for (const { plot } of charts.values()) {
      plot?.setCursor({ left: plot.valToPos(time, "x"), top: plot.over.clientHeight / 2 }, true, false);
    }
  }

  // ---- life -------------------------------------------------------------------------------------------------------

  function find() {
    for (const [figure, chart] of charts) {
      if (figure.isConnected) continue;
      drop(chart);
      charts.delete(figure);
    }
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const known = charts.get(figure);
      if (known) {
        // a poll of the part around it may have renewed the figure: its state is ours, its source may be another one
        if (known.plot) figure.dataset.state = "drawn";
        if (known.src !== figure.dataset.src) {
          Object.assign(known, { src: figure.dataset.src, data: null });
          load(known);
        }
        continue;
      }
      const chart = { figure, src: figure.dataset.src, holder: figure.querySelector(".plot"), keys: figure.querySelector(".chart-keys"), data: null, plot: null };
      charts.set(figure, chart);
      load(chart);
    }
  }

  function redraw() {
    for (const chart of charts.values()) {
      if (!chart.data) continue;
      drop(chart);
      draw(chart);
    }
  }

  function resize() {
    for (const chart of charts.values()) {
      if (chart.plot && chart.plot.width !== chart.holder.clientWidth) {
        chart.plot.setSize({ width: chart.holder.clientWidth, height: chart.plot.height });
      }
    }
  }

  let ticks = 0;

  function renew() {
    // A long range moves slowly: a day's points are minutes apart.
    ticks += 1;
    if (document.hidden) return;
    for (const chart of charts.values()) {
      const every = chart.data && chart.data.step_s > 60 ? 12 : 1;
      if (chart.data?.live && !chart.asking && ticks % every === 0) load(chart, { onlyNew: true });
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-range]");
    if (!link || !charts.size || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show({ range: link.dataset.range });
  });

  // A field of the explore form that changed draws anew; without JavaScript its button does.
  document.addEventListener("change", (event) => {
    if (event.target.matches("form[data-chart-form] [data-submits]")) event.target.form.requestSubmit();
  });

  document.addEventListener("farrier:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("htmx:after:swap", () => {
    find();
    tellTime();
  });
  addEventListener("popstate", () => {
    tellTime();
    for (const chart of charts.values()) load(chart);
  });
  addEventListener("resize", () => requestAnimationFrame(resize));
  setInterval(renew, LIVE_MS);

  function begin() {
    if (typeof uPlot === "undefined") return;
    find();
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
