// Depth over time: a sparkline for the list of queues, a chart with axes for the page of a queue.

import { clockTime, el, number, offset, rate, setText, svg } from "./dom.js";

const WIDTH = 200;
const HEIGHT = 24;

export function sparkline() {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const node = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, area, line);
  return {
    node,
    // All lines of a list begin at `since`; the top of each is its own largest value.
    update(values, { since, span }) {
      const known = (values ?? []).map((value, index) => [index, value]).filter(([, value]) => value !== null);
      const most = Math.max(1, ...known.map(([, value]) => value));
      const step = WIDTH / ((values ?? []).length - since);
      // each value is the largest of its part of the time, so it is drawn over all of that part
      const points = known.flatMap(([index, value]) => [index, index + 1].map((at) => [(at - since) * step, HEIGHT - 2 - (value / most) * (HEIGHT - 4)]));
      line.setAttribute("d", path(points));
      area.setAttribute("d", points.length ? `${path(points)}V${HEIGHT}H${points[0][0].toFixed(1)}Z` : "");
      const seen = known.map(([, value]) => value);
      node.setAttribute("aria-label", seen.length ? `visible over ${span}: at most ${number(Math.max(...seen))}, now ${number(seen.at(-1))}` : "no data yet");
    },
  };
}

function path(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Name, label, and text of a value. The first line has an area below it.
export const DEPTH = [
  ["visible", "visible", number],
  ["in_flight", "in flight", number],
  ["delayed", "delayed", number],
];
export const THROUGHPUT = [
  ["deleted", "deleted a minute", rate],
  ["sent", "sent a minute", rate],
];
const SHORTEST = 12_000; // ms that the axis spans at least
const LEFT = 52;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 24;

export function chart(series, label, height) {
  const picture = svg("svg", { class: "chart", role: "img", "aria-label": label });
  const values = series.map(() => el("b"));
  const at = el("span", { class: "quiet" });
  const legend = el(
    "p",
    { class: "legend" },
    series.map(([name, what], index) => el("span", { class: `key ${name}` }, `${what} `, values[index])),
    at,
  );
  const node = el("div", { class: "plot" }, legend, picture);
  let points = [];
  let first = null;
  let unknown = [];
  let present = null; // the newest counts, which may be newer than the last point
  let hours = 3;
  let nearest = null;
  let rule = null;
  let hovered = false;

  function draw() {
    const width = Math.max(280, node.clientWidth || 800);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    const end = points.length ? points.at(-1).at : 0;
    // what is known of a young queue fills the width
    const begin = Math.max(end - hours * 3_600_000, Math.min(first ?? 0, end - SHORTEST));
    const seconds = end - begin < 600_000;
    const top = roundUp(Math.max(1, ...points.flatMap((point) => series.map(([name]) => point[name]))));
    const x = (when) => LEFT + ((when - begin) / (end - begin)) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value / top) * (height - TOP - BOTTOM);
    const parts = unknown.map(([first, last]) => {
      const from = Math.max(LEFT, x(first));
      return svg("rect", { class: "unknown", x: from, y: TOP, width: Math.max(0, x(last) - from), height: height - TOP - BOTTOM }, svg("title", {}, "not known: nobody counted"));
    });
    if (!points.length) parts.push(svg("text", { class: "tick", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Loading…"));
    for (const value of new Set([0, top / 2, top].filter(Number.isInteger))) {
      parts.push(
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)),
      );
    }
    for (const when of points.length ? roundTimes(begin, end, width < 560 ? 3 : 7) : []) {
      const anchor = x(when) > width - 50 ? "end" : x(when) < LEFT + 40 ? "start" : "middle";
      parts.push(
        svg("text", { class: "tick", x: x(when), y: height - 6, "text-anchor": anchor }, clockTime(when, end - begin > 86_400_000, seconds)),
      );
    }
    const drawn = points.length === 1 ? [{ ...points[0], at: end - (end - begin) / 60 }, ...points] : points;
    for (const [name] of [...series].reverse()) {
      const line = drawn.map((point) => [x(point.at), y(point[name])]);
      if (name === series[0][0] && line.length) {
        const area = `${path(line)}V${y(0)}H${line[0][0].toFixed(1)}Z`;
        parts.push(svg("path", { class: `area ${name}`, d: area }));
      }
      parts.push(svg("path", { class: `line ${name}`, d: path(line) }));
    }
    rule = svg("line", { class: "rule", y1: TOP, y2: height - BOTTOM, x1: -9, x2: -9 });
    picture.replaceChildren(...parts, rule);
    nearest = (when) => {
      const chosen = points.reduce(
        (best, point) => (Math.abs(x(point.at) - when) < Math.abs(x(best.at) - when) ? point : best),
        points[0],
      );
      return [chosen, x(chosen.at)];
    };
    showPoint(present ?? points.at(-1));
  }

  function showPoint(point, where) {
    series.forEach(([name, , text], index) => setText(values[index], point ? text(point[name]) : ""));
    setText(at, where === undefined || !point ? "" : `${clockTime(point.at, true, true)} ${offset(point.at)}`);
    rule?.setAttribute("x1", where ?? -9);
    rule?.setAttribute("x2", where ?? -9);
  }

  picture.addEventListener("pointermove", (event) => {
    if (!points.length) return;
    hovered = true;
    showPoint(...nearest(event.clientX - picture.getBoundingClientRect().left));
  });
  picture.addEventListener("pointerleave", () => ((hovered = false), showPoint(present ?? points.at(-1))));
  new ResizeObserver(draw).observe(node);
  return {
    node,
    update(found) {
      ({ unknown, hours } = found);
      first = found.points[0]?.at; // so that two charts of the same points have one axis
      points = found.points.filter((point) => point[series[0][0]] !== null);
      draw();
    },
    // The legend and the tiles of the page show the same.
    now(counts) {
      present = counts;
      if (!hovered) showPoint(present);
    },
  };
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800]; // in s

// At most `most` instants that are round in the local time.
function roundTimes(begin, end, most) {
  const step = 1_000 * (STEPS.find((each) => (end - begin) / (1_000 * each) < most) ?? STEPS.at(-1));
  const shift = new Date(end).getTimezoneOffset() * 60_000;
  const first = Math.ceil((begin - shift) / step) * step + shift;
  return Array.from({ length: Math.max(0, Math.floor((end - first) / step) + 1) }, (_, index) => first + index * step);
}

// The next of 1, 2, 4, 10, 20, 40, …; from 2 on, half of it is an integer.
function roundUp(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return size * [1, 2, 4, 10].find((step) => step * size >= value);
}
