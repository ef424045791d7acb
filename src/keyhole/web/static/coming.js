// @ts-check
/**
 * What is still coming: while a process analyzes the run that is served, a line below the header says how far it is. A page on
 * which new analyses change something is drawn again if nobody has touched it. On the others a button does that, so that nothing
 * that was typed, opened or chosen is lost.
 */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { bar } from "./parts.js";
import { percent, visible } from "./text.js";

/** Milliseconds between two questions: while something is computed, and otherwise. */
const [SOON, LATER] = [2000, 5000];
/** Milliseconds between two drawings of a page: analyses may come close after each other. */
const REDRAW = 4000;
/** Analyses that are named; of the others, the number. */
const NAMED = 4;
/** Pages that show what analyses find, and that are drawn again by themselves. */
const SELF = ["overview", "cell"];

const place = /** @type {HTMLElement} */ (document.getElementById("coming"));
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const line = h("p", {});
const news = h("p", { role: "status" });
/** Whether the reader did anything on this page since it was drawn. */
let used = false;
let drawnAt = 0;
let page = "";

/**
 * Ask from now on, while the page is visible.
 * @param {() => Promise<boolean>} redraw draws the page again, from new data; false: not, because the reader is using it
 */
export function watch(redraw) {
  replace(place, line, news);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  const show = async () => {
    used = false;
    replace(news);
    arrange();
    if (!(await redraw())) offer();
  };
  const offer = () => {
    replace(news, "There are new analyses. ", h("button", { type: "button", class: "quiet", onclick: show }, "Show them"));
    arrange();
  };
  window.addEventListener(data.NEWS, () => {
    clearTimeout(waiting);
    waiting = setTimeout(
      async () => {
        if (!(await data.changed().catch(() => true))) return;
        if (!used && SELF.includes(page)) void show();
        else offer();
      },
      Math.max(0, drawnAt + REDRAW - performance.now()),
    );
  });
  for (const event of ["pointerdown", "keydown", "input"]) main.addEventListener(event, () => (used = true));
  void ask();
}

/** Whether the reader did anything on the page since it was drawn, or since a new drawing began. */
export const touched = () => used;

/** The page was drawn, with the newest data. @param {string} name */
export function drawn(name) {
  [page, used, drawnAt] = [name, false, performance.now()];
  replace(news);
  arrange();
}

function arrange() {
  place.hidden = !line.firstChild && !news.firstChild;
}

async function ask() {
  if (document.hidden)
    await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
  const found = await data.coming().catch(() => null);
  document.body.classList.toggle("analyzing", Boolean(found?.running));
  replace(line, found?.running ? said(found) : null);
  arrange();
  setTimeout(() => void ask(), found?.running ? SOON : LATER);
}

/** @param {import("../types.js").Coming} found */
function said({ steps, done, now, share }) {
  const left = steps.slice(done);
  const named = left.slice(0, NAMED).map(visible).join(", ") + (left.length > NAMED ? " …" : "");
  return [
    `Still coming: ${named || "the last of it"} (${done} of ${steps.length} done)`,
    now && h("span", { class: "stage" }, `now: ${visible(now)}`, bar(share ?? 0, "plain"), percent(share)),
  ];
}

/** Milliseconds for which a page that was drawn again is held in place: its parts are filled when they are seen. */
const HELD = 5000;

/**
 * The section that is in the middle of the screen, to be held there: call what this returns after the page was drawn again.
 * A reader who scrolls, clicks or types meanwhile is not held.
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export function held(main, signal) {
  const sections = () => /** @type {HTMLElement[]} */ ([...main.querySelectorAll("section[aria-labelledby]")]);
  const name = /** @param {Element} section */ (section) => section.getAttribute("aria-labelledby");
  const middle = sections().findLast((section) => section.getBoundingClientRect().top <= window.innerHeight / 2);
  const heights = new Map(sections().map((section) => [name(section), section.offsetHeight]));
  const top = middle?.getBoundingClientRect().top ?? 0;
  return () => {
    for (const section of sections()) section.style.minHeight = `${heights.get(name(section)) ?? 0}px`;
    const hold = () => {
      const now = middle && sections().find((section) => name(section) === name(middle));
      if (now) window.scrollBy(0, now.getBoundingClientRect().top - top);
    };
    hold();
    const observer = new ResizeObserver(hold);
    sections().forEach((section) => observer.observe(section));
    const free = () => observer.disconnect();
    for (const event of ["wheel", "touchstart", "pointerdown", "keydown"])
      window.addEventListener(event, free, { once: true, passive: true, signal });
    signal.addEventListener("abort", free);
    setTimeout(free, HELD);
  };
}

/**
 * What stands where an analysis is missing: that it is being made, or how to make it.
 * @param {string} what a sentence without its end: what is missing
 * @param {string} [how] what the command does
 */
export function notYet(what, how = "Analyze the run") {
  return [
    h("span", { class: "idle" }, `${what}. ${how}: `, h("code", {}, "keyhole analyze RUN")),
    h("span", { class: "running" }, `${what}. Analyses are running: what they find appears here.`),
  ];
}
