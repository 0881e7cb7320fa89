// Draws what a page says in data-plot and data-timeline, with uPlot. Charts of a page share their cross-hair.
// What is drawn stands on the page in words too: nothing is lost without this script.
"use strict";

const CHARTS = new Map();  // element -> its uPlot
const STEPS_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
  86400, 172800, 432000, 864000, 1728000, 4320000, 8640000];
const LONGEST = 99 * 86400;  // seconds that a timeline shows, which may begin and end with a part of a day more
const KEY_STEP = 1 / 60;  // of the width
let zoom = null;  // {min, max} in seconds while the page is zoomed

// Colours are those of the style sheet, in the theme of now.
function ink(name, alpha = 1) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return alpha === 1 ? colour : colour.replace(/^rgb\((.*)\)$/, (_, parts) => `rgb(${parts} / ${alpha})`.replaceAll(",", ""));
}

function shortNumber(value) {
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= limit) return `${+(value / limit).toPrecision(3)}\u00a0${unit}`;
  }
  return `${+value.toPrecision(3)}`;
}

function bytes(value) {
  for (const [limit, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) {
    if (value >= limit) return `${+(value / limit).toPrecision(3)}\u00a0${unit}`;
  }
  return `${Math.round(value)}\u00a0B`;
}

// By the names of service.ui.plot.Unit: how values are written, on axes too, and where axes have ticks.
const UNITS = {
  count: { write: (value) => Math.round(value).toLocaleString("en"), axis: shortNumber, steps: decades([1, 2, 5]) },
  bytes: { write: bytes, axis: bytes, steps: decades([1, 2, 5]) },
  seconds: { write: (value) => (value > 0 && value < 1 ? `${value.toFixed(2)}\u00a0s` : duration(value)), axis: duration, steps: STEPS_SECONDS },
  share: { write: (value) => `${Math.floor(value * 1000 + 1e-9) / 10}%`, axis: (value) => `${+(value * 100).toFixed(1)}%`, steps: [0.1, 0.25, 0.5, 1] },
};

function decades(steps) {
  return Array.from({ length: 16 }, (_, power) => steps.map((step) => step * 10 ** power)).flat();
}

// The last point at or before a time.
function indexAt(times, time) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (times[middle] <= time) low = middle;
    else high = middle - 1;
  }
  return low;
}

function valueAt(told, times, time) {
  const index = indexAt(times, time);
  const [value, after] = [told.values[index], told.values[index + 1]];
  if (!told.ages || after === undefined || times[index + 1] === times[index]) return value;
  return value + (after - value) * Math.max(time - times[index], 0) / (times[index + 1] - times[index]);
}

function timeAxis() {
  return {
    stroke: () => ink("muted"), grid: { stroke: () => ink("line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif", size: 28, space: 80,
    values: (_, ticks, __, ___, step) => ticks.map((tick) => timeOfTick(new Date(tick * 1000), step)),
  };
}

const TICKS = {
  day: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" }),
  minute: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" }),
  second: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
};

// In one line: the date where a day begins.
function timeOfTick(moment, step) {
  if (step >= 86400 || moment.getHours() + moment.getMinutes() + moment.getSeconds() === 0) return TICKS.day.format(moment);
  return (step < 60 ? TICKS.second : TICKS.minute).format(moment);
}

function words(moment, text) {
  return `${inViewersZone(new Date(moment * 1000))}: ${text}`;
}

// A box beside the cross-hair; what the keyboard reads is announced too.
function readout(element) {
  const box = document.createElement("div");
  box.className = "readout";
  box.hidden = true;
  const spoken = document.createElement("p");
  spoken.className = "hidden-words";
  spoken.setAttribute("aria-live", "polite");
  element.after(spoken);
  return {
    box,
    text: "",
    stay() { element.after(spoken); },
    show(chart, text) {
      const { left } = chart.cursor;
      box.hidden = text === "";
      if (box.hidden) return;
      box.textContent = text;
      const width = chart.over.clientWidth;
      const isRight = left > width / 2;
      box.style.left = isRight ? "" : `${left + 12}px`;
      box.style.right = isRight ? `${width - left + 12}px` : "";
      box.style.maxWidth = `${Math.max(isRight ? left : width - left, width / 2) - 14}px`;
    },
    say(text) { spoken.textContent = text; },
    remove() { spoken.remove(); },
  };
}

function zoomTo(range) {
  zoom = range;
  for (const chart of CHARTS.values()) {
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    chart.setScale("x", range ?? chart.whole);
  }
}

function lineChart(element) {
  let [told, times, marks, whole] = [];
  function read() {
    told = JSON.parse(element.dataset.plot);
    times = told.times.map((second) => told.began + second);
    marks = told.marks.map((second) => told.began + second);
    whole = { min: told.began, max: Math.max(told.ends, told.began + 1) };
  }
  read();
  // Of what is shown: a value holds until the next one, and both may lie outside.
  function highest() {
    const { min, max } = zoom ?? whole;
    const within = told.values.filter((_, index) => min <= times[index] && times[index] <= max);
    return Math.max(...within, valueAt(told, times, Math.max(min, times[0])), valueAt(told, times, max));
  }
  const unit = UNITS[told.unit];
  const label = readout(element);
  const chart = new uPlot({
    width: element.clientWidth || element.parentElement.clientWidth,
    height: element.classList.contains("tall") ? 210 : 120,
    legend: { show: false },
    scales: {
      x: { time: true, range: () => [(zoom ?? whole).min, (zoom ?? whole).max] },
      y: { range: () => [0, told.unit === "share" ? 1 : Math.max(highest() * 1.06, 1)] },
    },
    axes: [timeAxis(), {
      ...timeAxis(), size: 58, space: 34, incrs: unit.steps,
      values: (_, ticks) => ticks.map((tick) => unit.axis(tick)),
    }],
    series: [{}, {
      stroke: () => ink("accent"), fill: () => ink("accent", 0.13), width: 1.75, points: { show: false },
      paths: told.ages ? uPlot.paths.linear() : uPlot.paths.stepped({ align: 1 }),
    }],
    cursor: {
      // What is dragged over one of them zooms all of them by itself.
      sync: { key: "page", filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
      y: false, points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 5 },
      bind: { dblclick: () => () => zoomTo(null) },
    },
    hooks: {
      drawAxes: [(drawn) => {
        const { ctx, bbox } = drawn;
        ctx.save();
        ctx.strokeStyle = ink("muted");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const mark of marks) {
          const x = Math.round(drawn.valToPos(mark, "x", true));
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      }],
      setCursor: [(moved) => {
        if (moved.cursor.left < 0) return label.show(moved, "");
        const time = moved.posToVal(moved.cursor.left, "x");
        const held = time < times[0] ? "nothing was measured yet" : unit.write(valueAt(told, times, time));
        label.text = words(time, held);
        label.show(moved, label.text);
      }],
      setSelect: [(selected) => {
        const { left, width } = selected.select;
        if (width < 5) return;
        zoomTo({ min: selected.posToVal(left, "x"), max: selected.posToVal(left + width, "x") });
      }],
      destroy: [() => label.remove()],
    },
  }, [times, told.values], element);
  chart.over.append(label.box);
  chart.whole = whole;
  chart.label = label;
  chart.update = () => {
    read();
    chart.whole = whole;
    chart.setData([times, told.values], false);
    chart.setScale("x", zoom ?? whole);
  };
  return chart;
}

// Arrows read values, plus and minus zoom, Escape shows all of it again.
function onKey(event) {
  const element = event.currentTarget;
  const chart = CHARTS.get(element);
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const width = chart.over.clientWidth;
  const at = chart.cursor.left >= 0 ? chart.cursor.left : width;
  const places = {
    ArrowLeft: at - width * KEY_STEP, ArrowRight: at + width * KEY_STEP, Home: 0, End: width,
  };
  const { min, max } = chart.scales.x;
  if (event.key in places) {
    const left = Math.min(Math.max(places[event.key], 0), width);
    chart.setCursor({ left, top: chart.over.clientHeight / 2 }, true, true);
    chart.label.say(chart.label.text);
  } else if (event.key === "+" || event.key === "-") {
    const middle = chart.posToVal(at, "x");
    const half = (max - min) * (event.key === "+" ? 0.25 : 1);
    const whole = chart.whole;
    const range = { min: Math.max(middle - half, whole.min), max: Math.min(middle + half, whole.max) };
    zoomTo(range.min <= whole.min && range.max >= whole.max ? null : range);
  } else if (event.key === "Escape") {
    zoomTo(null);
    chart.setCursor({ left: -10, top: -10 }, true, true);
  } else {
    return;
  }
  event.preventDefault();
}

const ROW = 24;  // pixels
const LIMITS = { pending: [1, 100, 1e4, 1e6, 1e8], lag: [1e-9, 60, 600, 3600, 21600] };
const RUN_INKS = { succeeded: "good", failed: "bad", running: "accent-strong" };

// As `.heat-N` of the style sheet.
function heat(value, limits) {
  if (value === null || value === undefined) return null;
  const step = limits.filter((limit) => value >= limit).length;
  return step ? mixed([22, 42, 62, 80, 100][step - 1]) : ink("sunken");
}

function mixed(part) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `color-mix(in srgb, var(--accent) ${part}%, var(--surface))`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function timelineData(element) {
  const told = JSON.parse(element.dataset.timeline);
  told.runs = told.runs.map(([table, worker, kind, status, start, end, job]) => ({
    table, worker, kind, status, start: told.began + start, end: told.began + Math.max(end, start), job,
  }));
  return told;
}

// Rows of a timeline: a name, runs, and cells if it has some.
function tableRows(told, colour) {
  const runs = told.tables.map(() => []);
  for (const run of told.runs) runs[run.table].push(run);
  return told.tables.map(([id, name], number) => ({
    name, path: `/tables/${id}`, runs: runs[number], cells: told[colour][number],
    words: (cell) => {
      const [pending, lag] = [told.pending[number][cell], told.lag[number][cell]];
      if (pending === null || pending === undefined) return "nothing measured";
      return `${UNITS.count.write(pending)} pending${pending ? `, the oldest ${duration(lag)} old` : ""}`;
    },
  }));
}

// What a worker ran at the same time goes to lanes of their own.
function workerRows(told) {
  const rows = [];
  told.workers.forEach((name, worker) => {
    const lanes = [];
    for (const run of told.runs.filter((each) => each.worker === worker)) {
      const lane = lanes.find((each) => each.at(-1).end <= run.start);
      if (lane) lane.push(run);
      else lanes.push([run]);
    }
    lanes.forEach((runs, lane) => rows.push({ name: lane ? "" : name, path: "/workers", runs, cells: [] }));
  });
  return rows;
}

function cut(text, ctx, width) {
  if (ctx.measureText(text).width <= width) return text;
  let end = text.length;
  // The end of a name tells more than its beginning.
  while (end > 1 && ctx.measureText(`\u2026${text.slice(-end)}`).width > width) end -= 1;
  return `\u2026${text.slice(-end)}`;
}

function stripChart(element) {
  const hasCells = !element.dataset.lanes;
  let [told, rows] = [];
  function read() {
    told = timelineData(hasCells ? element : document.getElementById(element.dataset.lanes));
    rows = hasCells ? tableRows(told, element.dataset.colour) : workerRows(told);
  }
  read();
  const limits = LIMITS[element.dataset.colour];
  const label = readout(element);
  const width = element.clientWidth || element.parentElement.clientWidth;
  const names = Math.min(190, width * 0.28);
  let row = -1;

  function drawRows(drawn) {
    const { ctx, bbox } = drawn;
    const scale = devicePixelRatio;
    const height = bbox.height / rows.length;
    const inks = Object.fromEntries([...new Set(Object.values(RUN_INKS)), "muted", "text"].map((name) => [name, ink(name)]));
    const heats = new Map();
    ctx.save();
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    rows.forEach((each, number) => {
      const top = bbox.top + number * height;
      ctx.fillStyle = number === row ? inks.text : inks.muted;
      ctx.fillText(cut(each.name, ctx, (names - 14) * scale), 0, top + height / 2);
    });
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    rows.forEach((each, number) => {
      const top = bbox.top + number * height;
      each.cells.forEach((value, cell) => {
        const key = value === null ? null : limits.filter((limit) => value >= limit).length;
        if (key === null) return;
        if (!heats.has(key)) heats.set(key, heat(value, limits));
        const left = drawn.valToPos(told.began + cell * told.interval, "x", true);
        const right = drawn.valToPos(Math.min(told.began + (cell + 1) * told.interval, told.now), "x", true);
        ctx.fillStyle = heats.get(key);
        ctx.fillRect(Math.floor(left), top + scale, Math.ceil(right) - Math.floor(left), height - 9 * scale);
      });
      for (const run of each.runs) {
        const left = drawn.valToPos(run.start, "x", true);
        const wide = Math.max(drawn.valToPos(run.end, "x", true) - left, 3 * scale);
        ctx.fillStyle = inks[RUN_INKS[run.status] ?? "muted"];
        if (hasCells) ctx.fillRect(left, top + height - 7 * scale, wide, 5 * scale);
        else ctx.fillRect(left, top + 4 * scale, wide, height - 8 * scale);
      }
    });
    ctx.restore();
  }

  // The last run at a place of a row: within some pixels of the mouse, or in the interval that keys chose.
  function runAt(chart, left) {
    const time = chart.posToVal(left, "x");
    const near = Math.max(chart.posToVal(left + 4, "x") - time, chart.isByKey ? told.interval / 2 : 0);
    return rows[row]?.runs.findLast((run) => run.start - near <= time && time <= run.end + near);
  }

  function tell(chart) {
    const { left, top } = chart.cursor;
    // Cross-hairs are shared, rows are not.
    const isHere = left >= 0 && (element.matches(":hover") || document.activeElement === element);
    const before = row;
    row = isHere ? Math.min(Math.floor((top / chart.over.clientHeight) * rows.length), rows.length - 1) : -1;
    if (before !== row) chart.redraw(false, false);
    if (row < 0) return label.show(chart, "");
    const time = chart.posToVal(left, "x");
    const run = runAt(chart, left);
    const parts = [rows[row].name || "the same worker"];
    if (hasCells) parts.push(words(time, rows[row].words(Math.floor((time - told.began) / told.interval))));
    else parts.push(inViewersZone(new Date(time * 1000)));
    if (run) {
      const of = hasCells ? `on ${told.workers[run.worker]}` : `of ${told.tables[run.table][1]}`;
      parts.push(`${run.kind} ${of}: ${run.status}, ${duration(run.end - run.start)}`);
    }
    label.text = parts.join("\n");
    label.show(chart, label.text);
    label.box.style.top = `${Math.min((row + 1) * ROW + 4, Math.max(chart.over.clientHeight - 40, 4))}px`;
  }

  const chart = new uPlot({
    width, height: rows.length * ROW + 34,
    padding: [4, 8, 0, 0],
    legend: { show: false },
    scales: { x: { time: true, range: () => [told.began, told.ends] }, y: { range: () => [0, 1] } },
    axes: [timeAxis(), { size: names, values: () => [], grid: { show: false }, ticks: { show: false } }],
    series: [{}, { stroke: "transparent", points: { show: false } }],
    cursor: {
      sync: { key: "page", filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
      y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 5 },
      bind: { dblclick: () => () => {} },
    },
    hooks: {
      drawAxes: [drawRows],
      setCursor: [tell],
      setSelect: [(selected) => {
        const { left, width: wide } = selected.select;
        if (wide < 5) return;
        show(selected.posToVal(left, "x"), selected.posToVal(left + wide, "x"));
      }],
      destroy: [() => label.remove()],
    },
  }, [[told.began, told.ends], [0, 0]], element);
  chart.over.append(label.box);
  chart.label = label;
  chart.open = () => {
    const run = runAt(chart, chart.cursor.left);
    if (rows[row]) location.assign(run ? `/jobs/${run.job}` : rows[row].path);
  };
  chart.show = show;
  // The middle of the interval that is so many after the one at a place.
  chart.goFrom = (left, steps) => {
    const last = Math.ceil((told.now - told.began) / told.interval) - 1;
    const cell = Math.floor((chart.posToVal(left, "x") - told.began) / told.interval) + steps;
    return chart.valToPos(told.began + (Math.min(Math.max(cell, 0), last) + 0.5) * told.interval, "x");
  };
  chart.over.addEventListener("mousemove", () => { chart.isByKey = false; });
  chart.update = () => {
    read();
    chart.setData([[told.began, told.ends], [0, 0]], false);
    chart.setSize({ width: chart.width, height: rows.length * ROW + 34 });
    chart.setScale("x", { min: told.began, max: told.ends });
  };
  let pressed = 0;
  chart.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
  chart.over.addEventListener("click", (event) => Math.abs(event.clientX - pressed) < 5 && chart.open());
  return chart;
}

// Asks for another span of time, in finer or coarser intervals.
function show(from, to) {
  const address = new URL(location.href);
  const middle = (from + to) / 2;
  const half = Math.min(Math.max((to - from) / 2, 120), LONGEST / 2);
  address.searchParams.set("since", new Date((middle - half) * 1000).toISOString());
  address.searchParams.set("until", new Date((middle + half) * 1000).toISOString());
  location.assign(address);
}

// Arrows go from row to row and from time to time, Enter opens what is there, plus and minus zoom.
function onStripKey(event) {
  const element = event.currentTarget;
  const chart = CHARTS.get(element);
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const [width, height] = [chart.over.clientWidth, chart.over.clientHeight];
  const [left, top] = chart.cursor.left >= 0 ? [chart.cursor.left, chart.cursor.top] : [width - 1, ROW / 2 - ROW];
  const steps = {
    ArrowLeft: [chart.goFrom(left, -1), top], ArrowRight: [chart.goFrom(left, 1), top],
    ArrowUp: [left, top - ROW], ArrowDown: [left, top + ROW],
    Home: [chart.goFrom(0, 0), top], End: [chart.goFrom(width, 0), top],
  };
  const { min, max } = chart.scales.x;
  const middle = chart.posToVal(left, "x");
  if (event.key in steps) {
    chart.isByKey = true;
    const [x, y] = steps[event.key];
    const at = { left: Math.min(Math.max(x, 0), width - 1), top: Math.min(Math.max(y, ROW / 2), height - ROW / 2) };
    chart.setCursor(at, true, true);
    chart.label.say(chart.label.text);
  } else if (event.key === "Enter") chart.open();
  else if (event.key === "+") chart.show(middle - (max - min) / 4, middle + (max - min) / 4);
  else if (event.key === "-") chart.show(min - (max - min) / 2, max + (max - min) / 2);
  else if (event.key === "Escape") chart.setCursor({ left: -10, top: -10 }, true, true);
  else return;
  event.preventDefault();
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = CHARTS.get(target);
    if (chart && target.clientWidth && target.clientWidth !== chart.width) {
      chart.setSize({ width: target.clientWidth, height: chart.height });
    }
  }
});

function draw(part) {
  for (const element of part.querySelectorAll("[data-plot], [data-timeline], [data-lanes]")) {
    if (CHARTS.has(element)) continue;
    const label = element.getAttribute("aria-label");
    const old = [...CHARTS.keys()].find((one) => !one.isConnected && one.getAttribute("aria-label") === label);
    if (old) {
      // What somebody points at, drags over or has zoomed stays.
      Object.assign(old.dataset, element.dataset);
      element.replaceWith(old);
      CHARTS.get(old).label.stay();
      CHARTS.get(old).update();
      continue;
    }
    const isLine = "plot" in element.dataset;
    element.tabIndex = 0;
    element.setAttribute("aria-keyshortcuts", `ArrowLeft ArrowRight Home End + - Escape${isLine ? "" : " ArrowUp ArrowDown Enter"}`);
    CHARTS.set(element, isLine ? lineChart(element) : stripChart(element));
    element.addEventListener("keydown", isLine ? onKey : onStripKey);
    resized.observe(element);
  }
  for (const [element, chart] of CHARTS) {
    if (element.isConnected) continue;
    CHARTS.delete(element);
    resized.unobserve(element);
    chart.destroy();
  }
}

function drawAnew() {
  for (const chart of CHARTS.values()) chart.redraw(true, true);
}

document.addEventListener("enlivened", (event) => draw(event.target));
new MutationObserver(drawAnew).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
draw(document);
