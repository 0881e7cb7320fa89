// Draws what a page says in data-plot, data-timeline, data-bars and data-story, with uPlot. Charts of a page that
// show the same time share their cross-hair.
// What is drawn stands on the page in words too: nothing is lost without this script.
"use strict";

const CHARTS = new Map();  // element -> its uPlot
const STEPS_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
  86400, 172800, 432000, 864000, 1728000, 4320000, 8640000];
const LONGEST = 99 * 86400;  // seconds that a timeline shows, which may begin and end with a part of a day more
const KEY_STEP = 1 / 60;  // of the width
// What is dragged over one of them zooms all of them by itself.
const SHARED = { key: "page", filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } };
let zoom = null;  // {min, max} in seconds while the page is zoomed

// Colours are those of the style sheet, in the theme of now.
function ink(name, alpha = 1) {
  const probe = document.createElement("span");
  probe.hidden = true;
  // Colours that people force are one for all of them.
  probe.style.forcedColorAdjust = "none";
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return alpha === 1 ? colour : colour.replace(/^rgb\((.*)\)$/, (_, parts) => `rgb(${parts} / ${alpha})`.replaceAll(",", ""));
}

// Those of one drawing, each looked up once: a look makes the browser compute styles anew.
function inksOfNow() {
  const known = new Map();
  return (name, alpha = 1) => {
    const key = `${name} ${alpha}`;
    if (!known.has(key)) known.set(key, ink(name, alpha));
    return known.get(key);
  };
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

function valueAt({ times, values }, ages, time) {
  const index = indexAt(times, time);
  const [value, after] = [values[index], values[index + 1]];
  if (!ages || after === undefined || times[index + 1] === times[index]) return value;
  return value + (after - value) * Math.max(time - times[index], 0) / (times[index + 1] - times[index]);
}

// Where nothing is known: lines that go on from one place to the next.
function hatch(ctx, colour, left, top, width, height) {
  const step = 5 * devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.clearRect(left, top, width, height);
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  const [begins, ends] = [Math.max(left, 0), Math.min(left + width, ctx.canvas.width)];
  for (let x = Math.floor((begins - height) / step) * step; x < ends; x += step) {
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

// All lines as uPlot takes them: for each time of one of them, nothing is said of the others.
function aligned(lines) {
  const points = lines.flatMap(({ times, values }, line) => times.map((time, index) => [time, line, values[index]]));
  if (lines.length > 1) points.sort(([one], [other]) => one - other);
  return [
    points.map(([time]) => time),
    ...lines.map((_, line) => points.map(([, of, value]) => (of === line ? value : undefined))),
  ];
}

const FONT = "12px system-ui, sans-serif";

// `write` tells the words of a tick.
function xAxis(write, space = 70) {
  return {
    stroke: () => ink("muted"), grid: { stroke: () => ink("line"), width: 1 }, ticks: { show: false },
    font: FONT, size: 28, space,
    values: (chart, ticks, _, __, step) => ticks.map((tick) => uncut(chart, tick, write(tick, step))),
  };
}

function timeAxis() {
  return xAxis((tick, step) => timeOfTick(new Date(tick * 1000), step), 80);
}

// Words that the right edge would cut say something else than they mean.
function uncut(chart, tick, text) {
  chart.ctx.save();
  chart.ctx.font = FONT;
  const half = chart.ctx.measureText(text).width / 2;
  chart.ctx.restore();
  return chart.bbox.left / devicePixelRatio + chart.valToPos(tick, "x") + half + 2 > chart.width ? "" : text;
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
    if (chart.whole) chart.setScale("x", range ?? chart.whole);
  }
}

// A finger that goes along a chart drags as a mouse does, which is all that uPlot knows; across it, the page scrolls.
function byTouch(chart) {
  const { over } = chart;
  let from = null;
  let isDragging = false;

  function pass(kind, { clientX, clientY }) {
    over.dispatchEvent(new MouseEvent(kind, { bubbles: true, clientX, clientY, movementX: 1 }));
  }

  function end(event, at) {
    if (event.isPrimary && isDragging) pass("mouseup", at);
    [from, isDragging] = [null, false];
  }

  over.addEventListener("pointerdown", (event) => {
    if (!event.isPrimary) return;
    chart.isTouched = event.pointerType === "touch";
    from = chart.isTouched ? event : null;
  });
  over.addEventListener("pointermove", (event) => {
    if (!from || !event.isPrimary) return;
    if (!isDragging && Math.abs(event.clientX - from.clientX) < 8) return;
    if (!isDragging) pass("mousedown", from);
    isDragging = true;
    pass("mousemove", event);
  });
  over.addEventListener("pointerup", (event) => end(event, event));
  over.addEventListener("pointercancel", (event) => end(event, from));
}

// Lines over time: that of a plot, or those of several that are compared.
function lineChart(element) {
  let [told, lines, marks, unseen, whole] = [];
  function read() {
    told = JSON.parse(element.dataset.plot);
    lines = (told.lines ?? [{ ...told, ink: "accent" }]).map((line) => ({
      ...line, times: line.times.map((second) => told.began + second),
    }));
    marks = told.marks.map((second) => told.began + second);
    unseen = told.unseen.map((span) => span.map((second) => told.began + second));
    whole = { min: told.began, max: Math.max(told.ends, told.began + 1) };
  }
  read();
  // Of what is shown: a value holds until the next one, and both may lie outside.
  function highest() {
    const { min, max } = zoom ?? whole;
    return Math.max(...lines.flatMap((line) => [
      ...line.values.filter((_, index) => min <= line.times[index] && line.times[index] <= max),
      valueAt(line, told.ages, Math.max(min, line.times[0])), valueAt(line, told.ages, max),
    ]));
  }
  const held = (line, time) => (time < line.times[0] ? "nothing was measured yet" : unit.write(valueAt(line, told.ages, time)));
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
    series: [{}, ...lines.map((line, number) => ({
      stroke: () => ink(line.ink), fill: lines.length > 1 ? null : () => ink(line.ink, 0.13), width: 1.75,
      dash: number === 1 ? [7, 4] : null, points: { show: false }, spanGaps: true,
      paths: told.ages ? uPlot.paths.linear() : uPlot.paths.stepped({ align: 1 }),
    }))],
    cursor: {
      sync: SHARED,
      y: false, points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 5 },
      bind: { dblclick: () => () => zoomTo(null) },
    },
    hooks: {
      draw: [(drawn) => {
        const { ctx, bbox } = drawn;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        for (const [from, to] of unseen) {
          const left = drawn.valToPos(from, "x", true);
          hatch(ctx, ink("muted", 0.5), left, bbox.top, drawn.valToPos(to, "x", true) - left, bbox.height);
        }
        ctx.strokeStyle = ink("muted");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const mark of marks) {
          const x = Math.round(drawn.valToPos(mark, "x", true));
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
        const span = unseen.find(([from, to]) => from < time && time < to);
        const known = span && time >= lines[0].times[0] ? `not looked at, last known: ${held(lines[0], span[0])}` : held(lines[0], time);
        label.text = words(time, lines.length > 1 ? lines.map((line) => `\n${line.name}: ${held(line, time)}`).join("") : known);
        label.show(moved, label.text);
      }],
      setSelect: [(selected) => {
        const { left, width } = selected.select;
        if (width < 5) return;
        zoomTo({ min: selected.posToVal(left, "x"), max: selected.posToVal(left + width, "x") });
      }],
      destroy: [() => label.remove()],
    },
  }, aligned(lines), element);
  chart.over.append(label.box);
  byTouch(chart);
  chart.whole = whole;
  chart.label = label;
  chart.shortcuts = "ArrowLeft ArrowRight Home End + - Escape";
  chart.onKey = (event) => onKey(chart, event);
  chart.update = () => {
    read();
    chart.whole = whole;
    chart.setData(aligned(lines), false);
    chart.setScale("x", zoom ?? whole);
  };
  return chart;
}

// Arrows read values, plus and minus zoom, Escape shows all of it again.
function onKey(chart, event) {
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
  probe.style.forcedColorAdjust = "none";
  probe.style.color = `color-mix(in srgb, var(--accent) ${part}%, var(--surface))`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function timelineData(element) {
  const told = JSON.parse(element.dataset.timeline);
  told.runs = told.runs.map(([table, worker, kind, status, start, end, job, available]) => ({
    table, worker, kind: told.kinds[kind], status: told.statuses[status],
    start: told.began + start, end: told.began + Math.max(end, start), job, available: told.began + available,
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
      if (pending === undefined) return "nothing measured";
      if (pending === null) {
        const known = told.pending[number].slice(0, cell).findLast((value) => value !== null);
        return known === undefined ? "nothing measured" : `not looked at, last known: ${UNITS.count.write(known)} pending`;
      }
      return pending ? `at most ${UNITS.count.write(pending)} pending, the oldest at most ${duration(lag)} old` : "nothing pending";
    },
  }));
}

// What a worker ran at the same time goes to lanes of their own.
function workerRows(told) {
  const rows = [];
  const until = new Date(told.ends * 1000).toISOString();
  told.workers.forEach((name, worker) => {
    const path = `/jobs?${new URLSearchParams({ worker: name, until })}`;
    const lanes = [];
    for (const run of told.runs.filter((each) => each.worker === worker)) {
      const lane = lanes.find((each) => each.at(-1).end <= run.start);
      if (lane) lane.push(run);
      else lanes.push([run]);
    }
    lanes.forEach((runs, lane) => rows.push({ name: lane ? "" : name, path, runs, cells: [] }));
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

// A chart of rows: names on the left, and beside each what its kind draws. A kind reads what the page says, and
// tells rows, the span of the x axis, what is at a place in words, and what keys and the mouse do there.
function rowChart(element, kind) {
  const label = readout(element);
  const width = element.clientWidth || element.parentElement.clientWidth;
  const names = Math.min(190, width * 0.28);
  const height = () => kind.rows.length * kind.rowHeight + 34;
  let row = -1;
  kind.read();

  function drawRows(drawn) {
    const { ctx, bbox } = drawn;
    const scale = devicePixelRatio;
    const high = bbox.height / kind.rows.length;
    const [muted, text] = [ink("muted"), ink("text")];
    ctx.save();
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    kind.rows.forEach((each, number) => {
      ctx.fillStyle = number === row ? text : muted;
      ctx.fillText(cut(each.name, ctx, (names - 14) * scale), 0, bbox.top + (number + 0.5) * high);
    });
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    kind.draw(drawn, (number) => [bbox.top + number * high, high]);
    ctx.restore();
  }

  function tell(chart) {
    const { left, top } = chart.cursor;
    // Cross-hairs are shared, rows are not.
    const isHere = left >= 0 && (element.matches(":hover") || document.activeElement === element);
    const before = row;
    row = isHere ? Math.min(Math.floor((top / chart.over.clientHeight) * kind.rows.length), kind.rows.length - 1) : -1;
    if (before !== row) chart.redraw(false, false);
    if (row < 0) return label.show(chart, "");
    label.text = kind.say(chart, kind.rows[row], left);
    if (chart.isTouched && kind.pathAt) label.text += "\nTap again to open it";
    label.show(chart, label.text);
    const below = Math.max(chart.over.clientHeight - 40, 4);
    label.box.style.top = `${Math.min((row + 1) * kind.rowHeight + 4, below)}px`;
  }

  const chart = new uPlot({
    width, height: height(),
    padding: [4, 8, 0, 0],
    legend: { show: false },
    scales: { x: { time: kind.isTime, range: () => kind.span() }, y: { range: () => [0, 1] } },
    axes: [kind.axis(), { size: names, values: () => [], grid: { show: false }, ticks: { show: false } }],
    series: [{}, { stroke: "transparent", points: { show: false } }],
    cursor: {
      ...(kind.isTime ? { sync: SHARED } : {}),
      x: kind.hasCrossHair, y: false, points: { show: false },
      drag: { x: Boolean(kind.select), y: false, setScale: false, dist: 5 },
      // Where a click leads elsewhere, two of them do, too.
      bind: { dblclick: () => () => kind.pathAt || kind.all?.() },
    },
    hooks: {
      drawAxes: [drawRows],
      setCursor: [tell],
      setSelect: [(selected) => {
        const { left, width: wide } = selected.select;
        if (wide < 5) return;
        kind.select(selected.posToVal(left, "x"), selected.posToVal(left + wide, "x"));
      }],
      destroy: [() => label.remove()],
    },
  }, [kind.span(), [0, 0]], element);
  chart.over.append(label.box);
  chart.label = label;
  chart.whole = kind.whole?.();
  chart.shortcuts = `ArrowUp ArrowDown ${kind.shortcuts} Escape`;
  chart.row = () => kind.rows[row];
  chart.goToRow = (name, left) => {
    const number = Math.max(kind.rows.findIndex((each) => each.name === name), 0);
    chart.goTo(left, (number + 0.5) * kind.rowHeight);
  };
  chart.goTo = (left, top) => {
    chart.isByKey = true;
    const [wide, high, half] = [chart.over.clientWidth, chart.over.clientHeight, kind.rowHeight / 2];
    const at = { left: Math.min(Math.max(left, 0), wide - 1), top: Math.min(Math.max(top, half), high - half) };
    chart.setCursor(at, true, true);
    label.say(label.text);
  };
  // Up and down are alike in all of them: from the end, the first key leads to the first row.
  chart.onKey = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const isNew = chart.cursor.left < 0;
    const left = isNew ? chart.over.clientWidth - 1 : chart.cursor.left;
    const top = isNew ? -kind.rowHeight / 2 : chart.cursor.top;
    if (event.key === "ArrowUp") chart.goTo(left, top - kind.rowHeight);
    else if (event.key === "ArrowDown") chart.goTo(left, top + kind.rowHeight);
    else if (event.key === "Escape") {
      kind.all?.({ chart: element.id, row: chart.row()?.name, time: chart.posToVal(left, "x") });
      chart.setCursor({ left: -10, top: -10 }, true, true);
    } else if (!kind.onKey(chart, event.key, left, top)) return;
    event.preventDefault();
  };
  chart.over.addEventListener("mousemove", () => { chart.isByKey = false; });
  chart.update = () => {
    kind.read();
    const [min, max] = kind.span();
    chart.whole = kind.whole?.();
    chart.setData([[min, max], [0, 0]], false);
    chart.setSize({ width: chart.width, height: height() });
    chart.setScale("x", { min, max });
  };
  let pressed = null;
  let tapped = null;  // the first tap reads, as pointing does, and another one opens
  function go(event) {
    const path = kind.pathAt?.(chart, kind.rows[row], chart.cursor.left);
    const moved = pressed ? Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) : 0;
    if (!path || moved >= 5) return;
    if (chart.isTouched && path !== tapped) {
      tapped = path;
      return;
    }
    // As links do it.
    if (event.ctrlKey || event.metaKey || event.button === 1) open(path, "_blank", "noopener");
    else location.assign(path);
  }
  chart.over.addEventListener("mousedown", (event) => { pressed = event; });
  chart.over.addEventListener("click", go);
  chart.over.addEventListener("auxclick", (event) => event.button === 1 && go(event));
  byTouch(chart);
  return chart;
}

// Tables over time with what ran for them, or workers with what ran there.
function strips(element) {
  const hasCells = !element.dataset.lanes;
  const limits = LIMITS[element.dataset.colour];
  let told = null;

  // The last run at a place of a row: within some pixels of the mouse, or in the interval that keys chose.
  function runAt(chart, row, left) {
    const time = chart.posToVal(left, "x");
    const near = Math.max(chart.posToVal(left + (chart.isTouched ? 12 : 4), "x") - time, chart.isByKey ? told.interval / 2 : 0);
    return row?.runs.findLast((run) => run.start - near <= time && time <= run.end + near);
  }

  // The middle of the interval that is so many after the one at a place.
  function goFrom(chart, left, steps) {
    const last = Math.ceil((told.now - told.began) / told.interval) - 1;
    const cell = Math.floor((chart.posToVal(left, "x") - told.began) / told.interval) + steps;
    return chart.valToPos(told.began + (Math.min(Math.max(cell, 0), last) + 0.5) * told.interval, "x");
  }

  const kind = {
    rows: [], rowHeight: ROW, isTime: true, hasCrossHair: true, axis: timeAxis, select: show, all: showAll,
    shortcuts: "ArrowLeft ArrowRight Home End + - Enter",
    span: () => [told.began, told.ends],
    read() {
      told = timelineData(hasCells ? element : document.getElementById(element.dataset.lanes));
      kind.rows = hasCells ? tableRows(told, element.dataset.colour) : workerRows(told);
    },
    draw(drawn, placeOf) {
      const { ctx } = drawn;
      const scale = devicePixelRatio;
      const inkOf = inksOfNow();
      const heats = new Map();
      kind.rows.forEach((each, number) => {
        const [top, height] = placeOf(number);
        each.cells.forEach((value, cell) => {
          const from = told.began + cell * told.interval;
          if (from >= told.now) return;
          const left = Math.floor(drawn.valToPos(from, "x", true));
          const wide = Math.ceil(drawn.valToPos(Math.min(from + told.interval, told.now), "x", true)) - left;
          if (value === null) {
            if (cell && each.cells[cell - 1] === null) return;  // drawn with the first of them
            const next = each.cells.findIndex((one, place) => place > cell && one !== null);
            const to = Math.min(told.began + (next < 0 ? each.cells.length : next) * told.interval, told.now);
            const right = Math.ceil(drawn.valToPos(to, "x", true));
            return hatch(ctx, inkOf("muted", 0.5), left, top + scale, right - left, height - 9 * scale);
          }
          const key = limits.filter((limit) => value >= limit).length;
          if (!heats.has(key)) heats.set(key, heat(value, limits));
          ctx.fillStyle = heats.get(key);
          ctx.fillRect(left, top + scale, wide, height - 9 * scale);
        });
        for (const run of each.runs) {
          const left = drawn.valToPos(run.start, "x", true);
          const wide = Math.max(drawn.valToPos(run.end, "x", true) - left, 3 * scale);
          // What waits is hollow, and dashed if it is for a time.
          if (run.status === "queued" || run.status === "later") {
            ctx.strokeStyle = inkOf("muted");
            ctx.lineWidth = scale;
            ctx.setLineDash(run.status === "later" ? [3 * scale, 3 * scale] : []);
            ctx.strokeRect(left + scale / 2, top + height - 6.5 * scale, wide - scale, 4 * scale);
            continue;
          }
          ctx.fillStyle = inkOf(RUN_INKS[run.status] ?? "muted");
          // What failed is higher, for whoever sees no colours.
          const more = run.status === "failed" ? (hasCells ? 4 : 3) * scale : 0;
          if (hasCells) ctx.fillRect(left, top + height - 7 * scale - more, wide, 5 * scale + more);
          else ctx.fillRect(left, top + 4 * scale - more, wide, height - 8 * scale + 2 * more);
        }
      });
    },
    say(chart, row, left) {
      const time = chart.posToVal(left, "x");
      const run = runAt(chart, row, left);
      const parts = [row.name || "the same worker"];
      if (hasCells) parts.push(words(time, row.words(Math.floor((time - told.began) / told.interval))));
      else parts.push(inViewersZone(new Date(time * 1000)));
      if (run) {
        const of = hasCells ? `on ${told.workers[run.worker]}` : `of ${told.tables[run.table][1]}`;
        const waits = run.status === "queued" ? "waits for a worker"
          : run.status === "later" && `waits until ${inViewersZone(new Date(run.available * 1000))}`;
        parts.push(`${waits ? `${run.kind}: ${waits}` : `${run.kind} ${of}: ${run.status}`}, ${duration(run.end - run.start)}`);
      }
      return parts.join("\n");
    },
    pathAt(chart, row, left) {
      const run = runAt(chart, row, left);
      return run ? `/jobs/${run.job}` : row?.path;
    },
    // Arrows go from time to time, Enter opens what is there, plus and minus zoom.
    onKey(chart, key, left, top) {
      const steps = {
        ArrowLeft: () => goFrom(chart, left, -1), ArrowRight: () => goFrom(chart, left, 1),
        Home: () => goFrom(chart, 0, 0), End: () => goFrom(chart, chart.over.clientWidth, 0),
      };
      const { min, max } = chart.scales.x;
      const middle = chart.posToVal(left, "x");
      if (key in steps) chart.goTo(steps[key](), top);
      else if (key === "Enter" && chart.row()) location.assign(kind.pathAt(chart, chart.row(), left));
      else if (key === "+" || key === "-") {
        keep({ chart: element.id, row: chart.row()?.name, time: middle });
        if (key === "+") show(middle - (max - min) / 4, middle + (max - min) / 4);
        else show(min - (max - min) / 2, max + (max - min) / 2);
      } else return false;
      return true;
    },
  };
  return kind;
}

// Rows of bars, each of parts that follow each other: [value, ink] and so on. A row may be of a moment.
function bars(element) {
  let told = null;
  const kind = {
    rows: [], rowHeight: ROW, isTime: false, hasCrossHair: false, shortcuts: "Home End",
    span: () => [0, Math.max(1e-9, ...kind.rows.flatMap((row) => row.bars.map(total))) * 1.04],
    axis: () => {
      const unit = UNITS[told.unit];
      return {
        ...xAxis(told.unit === "seconds" ? seconds : unit.axis),
        incrs: told.unit === "seconds" ? [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...STEPS_SECONDS] : unit.steps,
      };
    },
    read() {
      told = JSON.parse(element.dataset.bars);
      kind.rows = told.rows.map(([name, at, said, ...drawn]) => {
        if (at === null) return { name, words: said, bars: drawn };
        const moment = new Date(at * 1000);
        const day = moment.toDateString() === new Date().toDateString() ? "" : `${TICKS.day.format(moment)} `;
        return { name: `${day}${TICKS.minute.format(moment)} ${name}`, words: `${inViewersZone(moment)}\n${said}`, bars: drawn };
      });
      kind.rowHeight = Math.max(ROW, 8 + 8 * Math.max(1, ...kind.rows.map((row) => row.bars.length)));
    },
    draw(drawn, placeOf) {
      const { ctx } = drawn;
      const scale = devicePixelRatio;
      const inkOf = inksOfNow();
      kind.rows.forEach((row, number) => {
        const [top, height] = placeOf(number);
        const high = (height - 8 * scale) / row.bars.length;
        row.bars.forEach((parts, bar) => {
          let from = 0;
          for (const [value, name] of parts) {
            if (value > 0) {
              const left = drawn.valToPos(from, "x", true);
              // What is there is seen, however little it is.
              const wide = Math.max(drawn.valToPos(from + value, "x", true) - left, 2 * scale);
              ctx.fillStyle = name.endsWith("-faint") ? inkOf(name.slice(0, -6), 0.45) : inkOf(name);
              ctx.fillRect(left, top + 4 * scale + bar * high, wide, high - (row.bars.length > 1 ? scale : 0));
            }
            from += value;
          }
        });
      });
    },
    say: (_, row) => `${row.name}\n${row.words}`,
    onKey(chart, key, left) {
      if (key === "Home") chart.goTo(left, 0);
      else if (key === "End") chart.goTo(left, chart.over.clientHeight);
      else return false;
      return true;
    },
  };
  return kind;
}

const total = (parts) => parts.reduce((sum, [value]) => sum + value, 0);

// What happened to a job: rows of what took time, [start, end, ink, words], and of moments, which end at once.
function story(element) {
  let [told, whole] = [null, null];

  // Those that the mouse points at, or keys chose: moments may lie close to each other.
  function itemsAt(chart, row, left) {
    if (chart.isByKey && chart.chosen && row.items.includes(chart.chosen)) return [chart.chosen];
    const time = chart.posToVal(left, "x");
    const near = chart.posToVal(left + 5, "x") - time;
    return row.items.filter(({ start, end }) => start - near <= time && time <= end + near);
  }

  const kind = {
    rows: [], rowHeight: ROW, isTime: false, hasCrossHair: true, shortcuts: "ArrowLeft ArrowRight Home End + -",
    span: () => [(zoom ?? whole).min, (zoom ?? whole).max],
    select: (min, max) => zoomTo({ min, max }),
    whole: () => whole,
    all: () => zoomTo(null),
    axis: () => ({
      ...xAxis(seconds), incrs: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...STEPS_SECONDS],
    }),
    read() {
      told = JSON.parse(element.dataset.story);
      whole = { min: told.from, max: Math.max(told.ends, told.from + 0.01) };
      kind.rows = told.rows.map(([name, ...items]) => ({
        name, items: items.map(([start, end, colour, said]) => ({ start, end, colour, words: said })),
      }));
    },
    draw(drawn, placeOf) {
      const { ctx } = drawn;
      const scale = devicePixelRatio;
      const inkOf = inksOfNow();
      kind.rows.forEach((row, number) => {
        const [top, height] = placeOf(number);
        for (const { start, end, colour } of row.items) {
          const left = drawn.valToPos(start, "x", true);
          const wide = Math.max(drawn.valToPos(end, "x", true) - left, 3 * scale);
          ctx.fillStyle = inkOf(colour);
          ctx.fillRect(start === end ? left - 1.5 * scale : left, top + 4 * scale, wide, height - 8 * scale);
        }
      });
    },
    say(chart, row, left) {
      const found = itemsAt(chart, row, left);
      const time = found[0]?.start ?? chart.posToVal(left, "x");
      const when = `${inViewersZone(new Date((told.began + time) * 1000))}, ${seconds(time)} after it was made`;
      const more = found.length > 3 ? [`and ${found.length - 3} more`] : [];
      return [row.name, when, ...found.slice(0, 3).map((item) => item.words), ...more].join("\n");
    },
    // Arrows go from one thing that happened to the next, plus and minus zoom.
    onKey(chart, key, left, top) {
      const row = kind.rows[Math.min(Math.max(Math.floor(top / kind.rowHeight), 0), kind.rows.length - 1)];
      const at = row.items.indexOf(chart.chosen);
      const time = chart.posToVal(left, "x");
      const near = Math.max(row.items.findLastIndex((item) => item.start <= time), 0);
      const steps = {
        ArrowLeft: at < 0 ? near : at - 1, ArrowRight: at < 0 ? near : at + 1, Home: 0, End: row.items.length - 1,
      };
      const { min, max } = chart.scales.x;
      const half = (max - min) * (key === "+" ? 0.25 : 1);
      if (key in steps) {
        chart.chosen = row.items[Math.min(Math.max(steps[key], 0), row.items.length - 1)];
        const { start, end } = chart.chosen;
        chart.goTo(chart.valToPos(Math.min(Math.max((start + end) / 2, min), max), "x"), top);
      } else if (key === "+" || key === "-") {
        const range = { min: Math.max(time - half, whole.min), max: Math.min(time + half, whole.max) };
        zoomTo(range.min <= whole.min && range.max >= whole.max ? null : range);
      } else return false;
      return true;
    },
  };
  return kind;
}

function seconds(value) {
  return Number.isInteger(value) || value >= 60 ? duration(value) : `${+value.toFixed(2)}\u00a0s`;
}

// Asks for another span of time, in finer or coarser intervals.
function show(from, to) {
  const address = new URL(location.href);
  const span = Math.min(Math.max(to - from, 240), LONGEST);
  // Of what is to come, nothing can be seen.
  const end = Math.min((from + to + span) / 2, Date.now() / 1000);
  address.searchParams.set("since", new Date((end - span) * 1000).toISOString());
  address.searchParams.set("until", new Date(end * 1000).toISOString());
  location.assign(address);
}

// Asks for the time until now again, if the page shows another.
function showAll(place) {
  const address = new URL(location.href);
  if (!address.searchParams.has("since")) return;
  if (place) keep(place);
  address.searchParams.delete("since");
  address.searchParams.delete("until");
  location.assign(address);
}

// Where the keyboard is, for the page that is asked for next: it begins there.
function keep(place) {
  keepInMind("place", { ...place, path: location.pathname });
}

function goOn() {
  const place = remembered("place", {});
  keepInMind("place", {});
  if (place.path !== location.pathname) return;
  if (place.link) {
    const links = [...document.querySelectorAll(".spans a")];
    return links.find((link) => link.textContent === place.link)?.focus();
  }
  const element = document.getElementById(place.chart);
  const chart = CHARTS.get(element);
  if (!chart) return;
  element.focus();
  chart.goToRow(place.row, chart.valToPos(place.time, "x"));
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
  for (const element of part.querySelectorAll("[data-plot], [data-timeline], [data-lanes], [data-bars], [data-story]")) {
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
    const { plot, bars: isBars, story: isStory } = element.dataset;
    const chart = plot ? lineChart(element) : rowChart(element, (isBars ? bars : isStory ? story : strips)(element));
    element.tabIndex = 0;
    // Screen readers keep arrows to themselves, but for what says that it takes keys.
    element.setAttribute("role", "application");
    element.setAttribute("aria-roledescription", "chart");
    element.setAttribute("aria-keyshortcuts", chart.shortcuts);
    CHARTS.set(element, chart);
    element.addEventListener("keydown", (event) => chart.onKey(event));
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

// What polls have found is the latest of the timeline, in the interval of its last look.
document.addEventListener("pending", ({ detail: tables }) => {
  for (const [element, chart] of CHARTS) {
    if (!element.dataset.timeline) continue;
    const told = JSON.parse(element.dataset.timeline);
    if (!told.tables.some(([id]) => id in tables)) continue;
    told.tables.forEach(([id], row) => {
      if (!(id in tables)) return;
      const [deletes, , lag] = tables[id];
      const cell = Math.min(Math.floor((told.now - told.began) / told.interval), told.pending[row].length - 1);
      told.pending[row][cell] = Math.max(told.pending[row][cell], deletes);
      told.lag[row][cell] = Math.max(told.lag[row][cell], Math.round(lag));
    });
    element.dataset.timeline = JSON.stringify(told);
    chart.update();
  }
});

document.addEventListener("enlivened", (event) => draw(event.target));
new MutationObserver(drawAnew).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
document.addEventListener("click", (event) => {
  const link = event.target.closest(".spans a");
  // Keys click without a count.
  if (link && event.detail === 0) keep({ link: link.textContent });
});
draw(document);
queueMicrotask(goOn);  // by then, charts know where their values are
