// @ts-check
/** Charts from Vega-Lite specs. The bundle is large, so it is loaded when the first chart comes into view. */
import { h } from "./dom.js";

const OPTIONS = {
  actions: false,
  ast: true, // interpret expressions, because the page's policy forbids eval
  defaultStyle: false,
  renderer: "svg",
  tooltip: { theme: "keyhole", disableDefaultStyle: true },
};

/** @type {Promise<any> | null} */
let bundle = null;

/** @returns {Promise<any>} */
function embed() {
  bundle ??= new Promise((resolve, reject) => {
    const fail = () => reject(new Error("static/vega.js could not be loaded"));
    const script = h("script", {
      src: new URL("vega.js", import.meta.url).href,
      onload: () => resolve(/** @type {any} */ (window).vegaEmbed),
      onerror: fail,
    });
    document.head.append(script);
  });
  return bundle;
}

/**
 * Draw a spec into an element. Colours are the page's variables, so light and dark need no redraw.
 * @param {HTMLElement} place
 * @param {any} spec
 * @param {AbortSignal} signal
 */
export async function draw(place, spec, signal) {
  try {
    const vegaEmbed = await embed();
    if (signal.aborted) return;
    const own = structuredClone(spec);
    if (place.clientWidth < 520 && own.config?.legend) own.config.legend.columns = 1;
    const { finalize } = await vegaEmbed(place, own, OPTIONS);
    signal.addEventListener("abort", finalize);
  } catch (error) {
    place.textContent = `The chart could not be drawn: ${/** @type {Error} */ (error).message}.`;
  }
}
