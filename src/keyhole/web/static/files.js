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
