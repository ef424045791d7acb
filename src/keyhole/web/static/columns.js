// @ts-check
/**
 * Reads the packs of an export (export/columns.py says how they are written): many answers of one kind, column by column.
 * Numbers and texts are decoded at once; an answer is put together only when it is asked for.
 */

/** @typedef {any[]} Node what a column is; its bytes follow those of the columns named before it */
/** @typedef {(i: number) => any} Column the value of an answer */
/** @typedef {{parts: [number, number, number, number][], pieces: string[]}} Texts parts of units (unit, first, size, length), and their tokens */
/** @typedef {{find: (numbers: number[]) => any}} Pack find: the answer of these numbers, undefined if the pack has none */

/**
 * @param {ArrayBuffer} buffer the pack, decompressed
 * @param {() => Promise<Texts>} shared the texts that packs without their own use
 * @returns {Promise<Pack>}
 */
export async function pack(buffer, shared) {
  const head = new DataView(buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, head)));
  const reader = new Reader(buffer, 4 + head);
  const numbers = reader.column(about.numbers, about.count);
  if (about.texts) reader.texts = reader.column(about.texts, 1)(0);
  else if (JSON.stringify(about.answers).includes('["w",')) reader.texts = await shared();
  const answers = reader.column(about.answers, about.count);
  const places = new Map(Array.from({ length: about.count }, (_, i) => [numbers(i).join("/"), i]));
  return {
    find: (asked) => {
      const i = places.get(asked.join("/"));
      return i === undefined ? undefined : answers(i);
    },
  };
}

class Reader {
  /** @param {ArrayBuffer} buffer @param {number} at where the columns begin */
  constructor(buffer, at) {
    this.buffer = buffer;
    this.at = at;
    /** @type {Texts | null} */
    this.texts = null;
  }

  /** @param {number} size */
  bytes(size) {
    this.at += size;
    return new Uint8Array(this.buffer, this.at - size, size);
  }

  /** @param {Node} node @param {number} count @returns {Column} */
  column([kind, ...node], count) {
    switch (kind) {
      case "c":
        return () => node[0];
      case "n":
      case "f": {
        const numbers = kind === "n" ? this.numbers(node, count) : this.floats(count);
        return (i) => numbers[i];
      }
      case "b": {
        const flags = this.column(node[0], count);
        return (i) => flags(i) === 1;
      }
      case "s":
        return this.strings(node, count);
      case "6":
        return this.arrays(node, count);
      case "d": {
        const [different, texts, which] = node;
        const text = this.column(texts, different);
        const numbers = this.column(which, count);
        return (i) => text(numbers(i));
      }
      case "?":
        return this.some(node, count);
      case "o": {
        const fields = this.fields(node[0], count);
        return (i) => object(fields, i);
      }
      case "t": {
        const columns = node.map((each) => this.column(each, count));
        return (i) => columns.map((column) => column(i));
      }
      case "l": {
        const ends = this.ends(node[0], count);
        const item = this.column(node[1], ends[count]);
        return (i) => Array.from({ length: ends[i + 1] - ends[i] }, (_, j) => item(ends[i] + j));
      }
      case "m": {
        const ends = this.ends(node[0], count);
        const [name, item] = [this.column(node[1], ends[count]), this.column(node[2], ends[count])];
        return (i) =>
          Object.fromEntries(
            Array.from({ length: ends[i + 1] - ends[i] }, (_, j) => [name(ends[i] + j), item(ends[i] + j)]),
          );
      }
      case "w":
        return this.triggers(node, count);
      case "j": {
        const text = this.column(node[0], count);
        return (i) => JSON.parse(text(i));
      }
    }
    throw new Error(`columns of kind ${kind} are not known`);
  }

  /** @param {number[]} node @param {number} count */
  numbers([width, decimals, delta], count) {
    const found = new Float64Array(count);
    for (let plane = 0, worth = 1; plane < width; plane++, worth *= 256) {
      const bytes = this.bytes(count);
      for (let i = 0; i < count; i++) found[i] += bytes[i] * worth;
    }
    const scale = 10 ** decimals;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      const signed = found[i] % 2 ? -(found[i] + 1) / 2 : found[i] / 2;
      sum = delta ? sum + signed : signed;
      found[i] = sum / scale;
    }
    return found;
  }

  /** @param {number} count */
  floats(count) {
    const view = new DataView(this.buffer, this.at, 8 * count);
    this.at += 8 * count;
    return Float64Array.from({ length: count }, (_, i) => view.getFloat64(8 * i, true));
  }

  /** Where each of some lengths begins, and where the last one ends. @param {Node} node @param {number} count */
  ends(node, count) {
    const length = this.column(node, count);
    const ends = new Float64Array(count + 1);
    for (let i = 0; i < count; i++) ends[i + 1] = ends[i] + length(i);
    return ends;
  }

  /** @param {any[]} node @param {number} count @returns {Column} */
  strings([size, lengths], count) {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.bytes(size));
    const ends = this.ends(lengths, count);
    return (i) => text.slice(ends[i], ends[i + 1]);
  }

  /** @param {any[]} node @param {number} count @returns {Column} */
  arrays([size, stride, lengths], count) {
    const all = this.bytes(size);
    const ends = this.ends(lengths, count);
    return (i) => {
      const planes = all.subarray(ends[i], ends[i + 1]);
      const rows = planes.length / stride;
      let text = "";
      for (let j = 0; j < planes.length; j++) text += String.fromCharCode(planes[(j % stride) * rows + Math.floor(j / stride)]);
      return btoa(text);
    };
  }

  /** @param {any[]} node @param {number} count @returns {Column} */
  some([which, there], count) {
    const code = this.column(which, count);
    const places = new Float64Array(count);
    let known = 0;
    for (let i = 0; i < count; i++) {
      places[i] = known;
      if (code(i) === 1) known += 1;
    }
    const column = this.column(there, known);
    return (i) => (code(i) === 1 ? column(places[i]) : code(i) === 0 ? null : undefined);
  }

  /** @param {Record<string, Node>} named @param {number} count @returns {[string, Column][]} */
  fields(named, count) {
    return Object.entries(named).map(([name, node]) => [name, this.column(node, count)]);
  }

  /** Rows whose tokens are a part of the texts. @param {any[]} node @param {number} count @returns {Column} */
  triggers([names, named, shaded], count) {
    const fields = this.fields(named, count);
    const columns = Object.fromEntries(fields);
    const ends = new Float64Array(count + 1);
    for (let i = 0; i < count; i++) ends[i + 1] = ends[i] + columns.position(i) + 1 + columns.follow(i);
    const letters = shaded ? new TextDecoder().decode(this.bytes(ends[count])) : "";
    const { parts, pieces } = /** @type {Texts} */ (this.texts);
    const begins = new Float64Array(parts.length);
    for (let i = 1; i < parts.length; i++) begins[i] = begins[i - 1] + parts[i - 1][2];
    return (i) => {
      const row = object(fields, i);
      const { start, position } = row;
      const size = ends[i + 1] - ends[i];
      const part = last(begins, start);
      const [unit, first, , length] = parts[part];
      const before = first + start - begins[part];
      Object.assign(row, { unit, before, position: before + position, after: length - before - size });
      row.tokens = pieces.slice(start, start + size);
      if (shaded) row.shades = letters.slice(ends[i], ends[i + 1]);
      return names.map((/** @type {string} */ name) => row[name]);
    };
  }
}

/** @param {[string, Column][]} fields @param {number} i @returns {Record<string, any>} */
function object(fields, i) {
  /** @type {Record<string, any>} */
  const found = {};
  for (const [name, column] of fields) {
    const value = column(i);
    if (value !== undefined) found[name] = value;
  }
  return found;
}

/** The last of some ascending numbers that is at most `limit`. @param {Float64Array} numbers @param {number} limit */
function last(numbers, limit) {
  let [low, high] = [0, numbers.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (numbers[middle] <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}
