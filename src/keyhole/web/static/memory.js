// @ts-check
/** What this browser stores for the reader. If it may store nothing, it is kept until the page is left. */

/** @type {Map<string, string>} */
const instead = new Map();

/** @param {string} name @returns {string | null} */
export function recall(name) {
  try {
    return instead.get(name) ?? localStorage.getItem(name); // what could not be stored is newer
  } catch {
    return instead.get(name) ?? null;
  }
}

/** @param {string} name @param {string} text @returns {boolean} whether it is still there after the page is left */
export function keep(name, text) {
  try {
    localStorage.setItem(name, text);
    instead.delete(name);
    return true;
  } catch {
    instead.set(name, text);
    return false;
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

/** Everything that is stored under names that begin with `start`. @param {string} start @returns {string[]} the names */
export function names(start) {
  const found = new Set(instead.keys());
  try {
    for (let i = 0; i < localStorage.length; i++) found.add(localStorage.key(i) ?? "");
  } catch {
    // nothing else is stored
  }
  return [...found].filter((name) => name.startsWith(start)).sort();
}
