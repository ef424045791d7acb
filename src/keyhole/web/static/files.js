// @ts-check
/** Files that the reader takes away or brings. */
import { Failure } from "./data.js";
import { h } from "./dom.js";

/** Download a text, or bytes. @param {string} name @param {BlobPart} text @param {string} [type] */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** The JSON of a file that the reader chose. @param {File} file */
export async function json(file) {
  try {
    return JSON.parse(await file.text());
  } catch (error) {
    throw new Failure(`${file.name} is no JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * Copy a text. Where the browser does not allow that, it is shown, selected.
 * @param {string} text
 * @param {HTMLElement} said
 * @param {HTMLElement} box
 */
export async function copy(text, said, box) {
  box.querySelector("textarea")?.remove();
  try {
    await navigator.clipboard.writeText(text);
    said.textContent = "Copied.";
  } catch {
    const field = h("textarea", { readonly: true, rows: Math.min(12, text.split("\n").length), "aria-label": "To copy" }, text);
    box.append(field);
    field.select();
    said.textContent = "This browser does not let the page copy. Here it is, selected:";
  }
}
