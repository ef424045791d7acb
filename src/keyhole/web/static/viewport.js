// @ts-check
/**
 * The part of a map that is shown, and how a reader moves it: wheel, pinch, drag, double click.
 *
 * A map lies in a world of its own: columns of cells by layers, or a plane of points. The viewport says which part of the world is
 * shown at which scale. It zooms around the pointer. A wheel without Ctrl scrolls the page as usual, unless the reader has put
 * the focus on the map; one finger scrolls the page up and down, two fingers move the map: a map never traps the reader.
 */

/** @typedef {{width: number, height: number}} Size */
/**
 * @typedef {object} World
 * @property {number} width
 * @property {number} height
 * @property {boolean} flat whether the height always fills the box: rows of layers keep their height
 * @property {number} closest pixels that one unit of width has at most
 */

/** Pixels that a pointer may move during a click. */
const STILL = 4;
/** Pixels between two taps of a finger that make a double tap. */
const TOUCHED = 24;
/** Milliseconds within which a second click makes a double click. */
const DOUBLE = 260;
/** How much one step of a button or a key zooms. */
export const STEP = 2;

export class Viewport {
  /** @param {World} world @param {() => void} changed */
  constructor(world, changed) {
    this.world = world;
    this.changed = changed;
    /** @type {Size} in pixels */
    this.size = { width: 1, height: 1 };
    /** the world's coordinates at the left and the top edge */
    this.x = 0;
    this.y = 0;
    /** pixels per unit */
    this.sx = 1;
    /** whether the whole width is shown, also after the box was resized */
    this.whole = true;
  }

  get sy() {
    return this.world.flat ? this.size.height / this.world.height : this.sx;
  }

  /** Pixels per unit if all is shown. */
  get least() {
    const { width, height, flat } = this.world;
    return flat ? this.size.width / width : Math.min(this.size.width / width, this.size.height / height);
  }

  get most() {
    return Math.max(this.least, this.world.closest);
  }

  /** Keep the view inside the world; where the world is smaller than the box, it is centred. */
  #settle() {
    this.sx = Math.min(this.most, Math.max(this.least, this.sx));
    this.whole = this.sx <= this.least * 1.0001;
    const clamp = (/** @type {number} */ at, /** @type {number} */ all, /** @type {number} */ seen) =>
      seen >= all ? (all - seen) / 2 : Math.max(0, Math.min(all - seen, at));
    this.x = clamp(this.x, this.world.width, this.size.width / this.sx);
    this.y = clamp(this.y, this.world.height, this.size.height / this.sy);
    this.changed();
  }

  /** @param {Size} size */
  resize(size) {
    const before = this.size;
    this.size = size;
    if (this.whole) this.sx = this.least;
    else this.sx *= size.width / before.width;
    this.#settle();
  }

  /** Show the whole map. */
  reset() {
    this.sx = this.least;
    this.#settle();
  }

  /** Zoom around a point of the box. Returns whether anything changed. @param {number} factor @param {number} px @param {number} py */
  zoom(factor, px, py) {
    const before = this.sx;
    const [x, y] = this.at(px, py);
    this.sx = Math.min(this.most, Math.max(this.least, this.sx * factor));
    if (this.sx === before) return false;
    this.x = x - px / this.sx;
    this.y = y - py / this.sy;
    this.#settle();
    return true;
  }

  /** Move the picture by pixels. Returns whether it moved. @param {number} dx @param {number} dy */
  pan(dx, dy) {
    const before = [this.x, this.y];
    this.x -= dx / this.sx;
    this.y -= dy / this.sy;
    this.#settle();
    return this.x !== before[0] || this.y !== before[1];
  }

  /** Show this part of the world, and that wherever it was. @param {{x: number, y: number, sx: number}} part */
  restore({ x, y, sx }) {
    [this.x, this.y, this.sx] = [x, y, sx];
    this.#settle();
  }

  /** Move so that a point of the world is shown. @param {number} x @param {number} y */
  reveal(x, y) {
    const [px, py] = this.on(x, y);
    const margin = Math.min(24, this.size.width / 4);
    const past = (/** @type {number} */ at, /** @type {number} */ room) =>
      at < margin ? margin - at : at > room - margin ? room - margin - at : 0;
    const dx = past(px, this.size.width);
    const dy = this.world.flat ? 0 : past(py, this.size.height);
    if (dx || dy) this.pan(dx, dy);
  }

  /** The point of the world at a pixel. @param {number} px @param {number} py @returns {[number, number]} */
  at(px, py) {
    return [this.x + px / this.sx, this.y + py / this.sy];
  }

  /** The pixel of a point of the world. @param {number} x @param {number} y @returns {[number, number]} */
  on(x, y) {
    return [(x - this.x) * this.sx, (y - this.y) * this.sy];
  }
}

/**
 * @typedef {object} Handlers
 * @property {() => Viewport} view
 * @property {(px: number, py: number) => void} point the pointer is there
 * @property {() => boolean} pointed whether the last `point` found what had been found before
 * @property {() => () => void} open opens what is found now, when called
 */

/**
 * Listen to pointer and wheel.
 * @param {HTMLElement} box
 * @param {Handlers} on
 */
export function listen(box, on) {
  /** The pointers that are down. @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let moved = false;
  let kind = "mouse";
  let tapped = { time: -Infinity, x: 0, y: 0 };
  let again = false;
  let waiting = 0;

  /** @param {MouseEvent} event */
  const place = (event) => {
    const area = box.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  };
  /** Middle and spread of the pointers that are down. */
  const pinch = () => {
    const all = [...down.values()];
    const x = all.reduce((sum, each) => sum + each.x, 0) / all.length;
    const y = all.reduce((sum, each) => sum + each.y, 0) / all.length;
    return { x, y, spread: all.length > 1 ? Math.hypot(all[0].x - all[1].x, all[0].y - all[1].y) : 0 };
  };

  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    kind = event.pointerType;
    moved = down.size > 0; // two fingers are no tap
    const at = place(event);
    down.set(event.pointerId, at);
    if (!moved) {
      on.point(at.x, at.y);
      again = on.pointed();
    }
  });

  box.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (!event.buttons) down.delete(event.pointerId); // it was released where this element heard nothing of it
    const from = down.get(event.pointerId);
    if (!from) {
      if (event.pointerType === "mouse") on.point(at.x, at.y);
      return;
    }
    if (!moved && Math.hypot(at.x - from.x, at.y - from.y) < STILL) return;
    if (!moved) box.setPointerCapture(event.pointerId);
    moved = true;
    const before = pinch();
    down.set(event.pointerId, at);
    const now = pinch();
    const view = on.view();
    if (before.spread && now.spread) view.zoom(now.spread / before.spread, before.x, before.y);
    view.pan(now.x - before.x, now.y - before.y);
  });

  const up = (/** @type {PointerEvent} */ event) => down.delete(event.pointerId);
  box.addEventListener("pointerup", up);
  box.addEventListener("pointercancel", up);

  box.addEventListener("click", (event) => {
    if (moved) return;
    const at = place(event);
    const view = on.view();
    const time = performance.now();
    const near = Math.hypot(at.x - tapped.x, at.y - tapped.y) < (kind === "mouse" ? STILL : TOUCHED);
    const second = near && time - tapped.time < DOUBLE;
    tapped = { ...at, time: second ? -Infinity : time };
    clearTimeout(waiting);
    if (second) {
      if (view.zoom(STEP ** 2, at.x, at.y)) on.point(at.x, at.y);
      return;
    }
    // a finger has no hover: its first tap shows a cell, its second opens it
    if (kind !== "mouse" && !again) return;
    // what is opened is what is shown at the click, wherever the pointer goes while a second click is awaited
    const open = on.open();
    if (view.sx < view.most) waiting = window.setTimeout(open, DOUBLE);
    else open();
  });

  box.addEventListener(
    "wheel",
    (event) => {
      const view = on.view();
      const meant = event.ctrlKey || event.metaKey;
      if (!meant && document.activeElement !== box) return;
      const at = place(event);
      const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      const sideways = !meant && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY));
      const did = sideways
        ? view.pan(-unit * (event.deltaX || event.deltaY), 0)
        : view.zoom(Math.exp(Math.max(-1, Math.min(1, -unit * event.deltaY * 0.004))), at.x, at.y);
      // zoomed out as far as it goes, the wheel scrolls the page again; with Ctrl it would zoom the whole page
      if (did || meant) event.preventDefault();
      if (did) on.point(at.x, at.y);
    },
    { passive: false },
  );
}
