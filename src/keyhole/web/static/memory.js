// @ts-check
/** What this browser stores for the reader. If it may store nothing, it is kept until the page is left. */

/** @type {Map<string, string>} */
const instead = new Map();

/** @param {string} name @returns {string | null} */
export function recall(name) {
  try {
    return localStorage.getItem(name) ?? instead.get(name) ?? null;
  } catch {
    return instead.get(name) ?? null;
  }
}

/** @param {string} name @param {string} text */
export function keep(name, text) {
  try {
    localStorage.setItem(name, text);
  } catch {
    instead.set(name, text);
  }
}

/** @param {string} name */
export function forget(name) {
  instead.delete(name);
  try {
    localStorage.removeItem(name);
  } catch {
    // it was not there
  }
}
