// @ts-check
/**
 * Search: a token → the values that promote it; a word or phrase → the cells whose triggers contain it; words or a token → the
 * cells whose patterns name them; an address → the cell.
 */
import { link, parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import * as kinds from "./kinds.js";
import { naming } from "./naming.js";
import { bar, cellLink, failure, label, listed, preview, token } from "./parts.js";
import { counted, fnv1a, number, visible, whole, words } from "./text.js";

const MOST_UNITS = 300;
const OFFERED = 24;
const SNIPPET = 60;

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal }) {
  const asked = query.get("q") ?? "";
  const labelled = await data.kinds();
  const kind = query.get("kind") ?? "";
  const isOfKind = kinds.of(labelled, kind);
  /** @param {string} name */
  const look = (name) => {
    location.hash = `#/search?q=${encodeURIComponent(field.value)}${name ? `&kind=${name}` : ""}`;
  };
  const field = h("input", {
    id: "q",
    type: "search",
    value: asked,
    placeholder: "a token, a phrase, or a cell such as L3.17",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 400,
  });
  const go = /** @param {Event} event */ (event) => {
    event.preventDefault();
    look(kind);
  };
  const said = h("div", { class: "results" });
  const phrases = h("div", { class: "results" });
  const rules = h("div", { class: "results" });
  const body = h(
    "div",
    {},
    h("h1", {}, "Search"),
    h(
      "form",
      { class: "controls big", role: "search", onsubmit: go },
      h("label", { for: "q" }, "Token, phrase or cell"),
      field,
      kinds.choice(labelled, kind, look),
      h("button", { type: "submit" }, "Search"),
    ),
    asked.trim()
      ? h(
          "div",
          { class: run.patterns ? "two even three" : "two even" },
          run.patterns &&
            h(
              "section",
              { "aria-labelledby": "patterns-title" },
              h("h2", { id: "patterns-title", class: "key" }, "Patterns that name it"),
              rules,
            ),
          h(
            "section",
            { "aria-labelledby": "values-title" },
            h("h2", { id: "values-title", class: "value" }, "Values that promote or demote it"),
            said,
          ),
          h(
            "section",
            { "aria-labelledby": "keys-title" },
            h("h2", { id: "keys-title", class: "key" }, "Keys that fire on it"),
            phrases,
          ),
        )
      : kind
        ? ofKind(isOfKind, signal)
        : examples(run),
  );
  const address = parse(asked);
  if (address && data.axis.locate(address)) {
    location.replace(link(address));
    return { title: asked, body: h("div", {}, h("h1", {}, "Search"), h("p", {}, `To ${asked} …`)) };
  }
  if (asked.trim()) {
    /** @param {HTMLElement} place @param {(place: HTMLElement) => Promise<void>} fill */
    const fillIn = (place, fill) => {
      replace(place, h("p", { class: "soft" }, "Looking …"));
      fill(place).catch((error) => replace(place, failure(error)));
    };
    fillIn(said, (place) => tokens(place, asked, query.get("token"), run, signal, { kind, isOfKind }));
    fillIn(phrases, (place) => triggers(place, asked, run, signal, isOfKind));
    if (run.patterns)
      fillIn(rules, async (place) => {
        const exact = meant((await data.vocabulary()).pieces, asked).filter(({ exact }) => exact);
        await naming(place, asked, exact.map(({ id }) => id), run, signal, isOfKind);
      });
  }
  return { title: asked ? `Search: ${asked}` : "Search", body };
}

/** @typedef {(layer: number, cell: number) => boolean} IsOfKind */

/** The cells of a kind, if nothing else is asked. @param {IsOfKind} isOfKind @param {AbortSignal} signal */
function ofKind(isOfKind, signal) {
  const { axis } = data;
  const cells = Array.from({ length: axis.length }, (_, place) => axis.split(place)).filter(({ layer, cell }) =>
    isOfKind(layer, cell),
  );
  return h(
    "div",
    { class: "results" },
    h("p", { class: "soft", role: "status" }, `${counted(cells.length, "cell")} of this kind.`),
    listed(cells, ({ layer, cell }) =>
      h(
        "li",
        {},
        h("span", { class: "hit" }, cellLink(layer, cell)),
        preview(axis.address(layer, cell), signal, { triggers: 1, promoted: 5 }),
      ),
    ),
  );
}

/** @param {string} text */
function searchLink(text) {
  return h("a", { href: `#/search?q=${encodeURIComponent(text)}` }, h("bdi", {}, visible(text)));
}

/** @param {data.Run} run */
function examples(run) {
  return h(
    "div",
    {},
    h(
      "p",
      {},
      "A ",
      h("b", {}, "token"),
      " finds the values that promote it; a ",
      h("b", {}, "word or phrase"),
      " finds the keys whose triggers contain it",
      run.patterns && ", and the patterns that name it",
      "; a ",
      h("b", {}, "cell’s address"),
      " opens it.",
    ),
    h(
      "p",
      { class: "soft" },
      "Try ",
      ["freedom", "of the", "January"]
        .map((word, i) => [i ? ", " : "", h("a", { href: `#/search?q=${encodeURIComponent(word)}` }, word)])
        .flat(),
      ".",
    ),
  );
}

// Tokens

/**
 * Tokens that a query may mean, best first: itself, with a leading space, in another case; then those that contain it.
 * @param {string[]} pieces
 * @param {string} asked
 */
export function meant(pieces, asked) {
  const bare = asked.trim();
  const low = bare.toLowerCase();
  /** @type {[number, number, number][]} */
  const found = [];
  pieces.forEach((piece, id) => {
    const text = piece.trim();
    let how = -1;
    if (piece === asked) how = 0;
    else if (text === bare) how = 1;
    else if (text.toLowerCase() === low) how = 2;
    else if (low && text.toLowerCase().includes(low)) how = 3;
    if (how >= 0) found.push([how, piece.length, id]);
  });
  found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
  return found.map(([how, , id]) => ({ id, exact: how < 3 }));
}

/** @param {HTMLElement} place @param {string} asked @param {string | null} wanted @param {data.Run} run @param {AbortSignal} signal @param {{kind: string, isOfKind: IsOfKind}} only */
async function tokens(place, asked, wanted, run, signal, only) {
  if (!run.lens) {
    replace(
      place,
      h("p", { class: "missing" }, "The values are not read yet. Read them: ", h("code", {}, "keyhole analyze RUN")),
    );
    return;
  }
  const { pieces } = await data.vocabulary();
  const all = meant(pieces, asked);
  if (!all.length) {
    const single = words(asked);
    replace(
      place,
      h("p", {}, "No token of this model is or contains ", token(asked), ". Longer texts are made of several tokens."),
      single.length > 1 && h("p", { class: "chips" }, "Search for one: ", single.map(searchLink)),
    );
    return;
  }
  const offered = all.slice(0, OFFERED);
  const speaking = await Promise.all(offered.map(async ({ id }) => (await data.tokens(id)).promoted[id]?.length ?? 0));
  const first = offered.findIndex(({ exact }, i) => exact && speaking[i] > 0);
  const chosen =
    wanted !== null && pieces[Number(wanted)] !== undefined ? Number(wanted) : offered[first >= 0 ? first : 0].id;
  const chips = offered.map(({ id }, i) =>
    h(
      "a",
      {
        class: "chip",
        href: `#/search?q=${encodeURIComponent(asked)}&token=${id}${only.kind ? `&kind=${only.kind}` : ""}`,
        "aria-current": id === chosen ? "true" : null,
      },
      token(pieces[id]),
      h("span", { class: "soft small" }, whole(speaking[i])),
    ),
  );
  const page = await data.tokens(chosen);
  const those = (/** @type {data.Speaker[] | undefined} */ list) =>
    (list ?? []).filter(({ layer, cell }) => only.isOfKind(layer, cell));
  replace(
    place,
    h("nav", { class: "chips", "aria-label": "Tokens it may mean" }, chips),
    all.length > offered.length &&
      h(
        "p",
        { class: "soft small" },
        `${whole(all.length)} tokens contain it; the ${offered.length} nearest are offered.`,
      ),
    speakers("promote", pieces[chosen], those(page.promoted[chosen]), "say", signal),
    speakers("demote", pieces[chosen], those(page.demoted[chosen]), "unsay", signal),
  );
}

/** @param {string} verb @param {string} piece @param {data.Speaker[]} cells @param {string} kind @param {AbortSignal} signal */
function speakers(verb, piece, cells, kind, signal) {
  if (!cells.length) return h("p", {}, `No value has `, token(piece), ` among the tokens it ${verb}s most.`);
  const largest = Math.max(...cells.map(({ logit }) => Math.abs(logit)), 1e-9);
  return h(
    "div",
    {},
    h("h3", {}, `${counted(cells.length, "value")} ${cells.length === 1 ? `${verb}s` : verb} `, token(piece)),
    listed(cells, ({ layer, cell, logit, rank }) =>
      h(
        "li",
        {},
        h(
          "span",
          { class: "hit" },
          cellLink(layer, cell),
          bar(Math.abs(logit) / largest, kind),
          h("span", { class: "num soft small" }, `${number(logit)}, rank ${rank}`),
        ),
        preview(data.axis.address(layer, cell), signal, { triggers: 1, promoted: 5 }),
      ),
    ),
  );
}

// Phrases

/** @typedef {{layer: number, cell: number, sign: number, count: number, before: string, match: string, after: string}} Hit */

/** @typedef {{hits: Hit[], units: number, read: number, unknown: string[], done: boolean}} Found */

/**
 * The cells whose triggers contain the phrase, those with most such triggers first. `tell` is called as more texts are read.
 * @param {string} asked
 * @param {data.Run} run
 * @param {(found: Found) => void} tell
 * @param {AbortSignal} signal
 */
export async function phrase(asked, run, tell, signal) {
  const all = [...new Set(words(asked))];
  const lists = await Promise.all(
    all.map(async (word) => {
      const page = await data.words(fnv1a(word) % run.words);
      return Object.hasOwn(page.words, word) ? page.words[word] : [];
    }),
  );
  const unknown = all.filter((_, i) => !lists[i].length);
  if (!all.length || unknown.length) return tell({ hits: [], units: 0, read: 0, unknown, done: true });
  lists.sort((a, b) => a.length - b.length);
  const rest = lists.slice(1).map((list) => new Set(list));
  const units = lists[0].filter((unit) => rest.every((set) => set.has(unit)));
  const first = units.slice(0, MOST_UNITS);
  /** @type {Map<number, number[]>} */
  const chunks = new Map();
  for (const unit of first) {
    const page = await data.page(unit);
    chunks.set(page, [...(chunks.get(page) ?? []), unit]);
  }
  /** @type {Map<string, Hit>} */
  const hits = new Map();
  let read = 0;
  for (const [chunk, wanted] of chunks) {
    const page = await data.units(chunk);
    if (signal.aborted) return;
    for (const unit of wanted) collect(hits, page[unit], asked.trim());
    read += wanted.length;
    const sorted = [...hits.values()].sort(
      (a, b) => b.count - a.count || b.sign - a.sign || a.layer - b.layer || a.cell - b.cell,
    );
    tell({ hits: sorted, units: units.length, read, unknown, done: read === first.length });
  }
  if (!chunks.size) tell({ hits: [], units: 0, read: 0, unknown, done: true });
}

/** @param {Map<string, Hit>} hits @param {data.Unit | undefined} unit @param {string} asked */
function collect(hits, unit, asked) {
  if (!unit) return;
  const find = finder(unit.text, asked);
  for (const { layer, cell, end, sign } of unit.triggers) {
    const found = find(end);
    if (!found) continue;
    const name = `${layer}.${cell}.${sign}`;
    const known = hits.get(name);
    if (known) known.count += 1;
    else hits.set(name, { layer, cell, sign, count: 1, ...found });
  }
}

/**
 * Finds the last occurrence of a phrase in the first `end` characters of a text, whatever its case.
 * Characters are counted as Python counts them. A text whose length changes in lower case is not cut into a snippet.
 * @param {string} text
 * @param {string} asked
 */
export function finder(text, asked) {
  const needle = asked.toLowerCase();
  const low = text.toLowerCase();
  const same = low.length === text.length;
  /** @type {string[] | null} */
  const characters = /[\ud800-\udfff]/.test(text) ? Array.from(text) : null;
  /** @param {number} end */
  return (end) => {
    const length = characters ? characters.slice(0, end).join("").length : end;
    const at = same
      ? low.lastIndexOf(needle, length - needle.length)
      : text.slice(0, length).toLowerCase().lastIndexOf(needle);
    if (at < 0 || (same && length < needle.length)) return null;
    if (!same) return { before: "", match: asked, after: "" };
    const from = Math.max(0, at - SNIPPET);
    const to = at + needle.length;
    return {
      before: (from ? "…" : "") + text.slice(from, at),
      match: text.slice(at, to),
      after: text.slice(to, Math.min(length, to + SNIPPET)),
    };
  };
}

/** @param {HTMLElement} place @param {string} asked @param {data.Run} run @param {AbortSignal} signal @param {IsOfKind} isOfKind */
async function triggers(place, asked, run, signal, isOfKind) {
  /** @param {string} text */
  const quote = (text) => h("q", {}, h("bdi", {}, visible(text)));
  await phrase(
    asked,
    run,
    (all) => {
      const found = { ...all, hits: all.hits.filter(({ layer, cell }) => isOfKind(layer, cell)) };
      const none = found.unknown.length ? found.unknown : [asked.trim()];
      if (!found.hits.length && found.done)
        return replace(
          place,
          h("p", {}, "No trigger contains ", none.map((word, i) => [i ? ", " : "", quote(word)]).flat(), "."),
        );
      const partly = found.done
        ? found.read < found.units
          ? `, among the first ${whole(found.read)} of ${whole(found.units)} texts`
          : ""
        : `; ${whole(found.read)} of ${whole(found.units)} texts read …`;
      replace(
        place,
        h(
          "p",
          { class: "soft", role: "status" },
          `${counted(found.hits.length, "cell")} with triggers that contain it${partly}${found.done ? "." : ""}`,
        ),
        listed(found.hits, (hit) =>
          h(
            "li",
            {},
            h(
              "span",
              { class: "hit" },
              cellLink(hit.layer, hit.cell),
              label(hit.layer, hit.cell, signal),
              h(
                "span",
                { class: "soft small" },
                `${counted(hit.count, "trigger")}${hit.sign < 0 ? `, ${run.model.gated ? "other" : "negative"} side` : ""}`,
              ),
            ),
            h(
              "span",
              { class: "snippet" },
              h("bdi", {}, visible(hit.before), h("mark", {}, visible(hit.match)), visible(hit.after)),
            ),
          ),
        ),
      );
    },
    signal,
  );
}
