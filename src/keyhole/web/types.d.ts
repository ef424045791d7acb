// Made from schema.py: python -m keyhole.web.typedefs

/** What was scanned. */
export interface About {
  keyhole: string;
  live: boolean;
  checksum: string;
  model: AboutModel;
  layers: Layer[];
  corpus: AboutCorpus;
  config: AboutConfig;
  lenses: string[];
  lens: string | null;
  shading: boolean;
  worth: string[];
  words: number;
  dead: number;
  packing: Packing;
  annotating: Annotating;
  beside: AboutBeside | null;
  patterns: AboutPatterns | null;
}

export interface AboutModel {
  name: string;
  family: string;
  signed: boolean;
  gated: boolean;
}

/** A layer on the axis of cells (`Cells.as_json`). */
export interface Layer {
  layer: string;
  offset: number;
  width: number;
  experts?: number;
}

export interface AboutCorpus {
  sources: string[];
  documents: number;
  units: number;
  tokens: number;
  distinct_prefixes: number;
  scanned_prefixes: number;
}

export interface AboutConfig {
  top: number;
  per: string;
  unit: string;
  context: number;
}

/** How the large answers are packed. */
export interface Packing {
  page: number;
  separator: string;
  shades: string;
}

/** What an annotation may be. */
export interface Annotating {
  name: string;
  triggers: number;
  least: number;
  patterns: number;
  description: number;
  note: number;
  kinds: ("semantic" | "shallow")[];
}

/** Another run of the same cells, shown beside this one. */
export interface AboutBeside {
  name: string;
  model: string;
  sources: string[];
  same_model: boolean;
}

/** What `keyhole patterns` looked at. */
export interface AboutPatterns {
  cells: number | "all";
  most: number;
  held_out: HeldOut | null;
}

/** The text that patterns were scored on, and that they were not found in. */
export interface HeldOut {
  source: string;
  tokens: number;
  documents: number;
}

/** Every cell, one byte per measure. */
export interface CellMap {
  levels: number;
  unknown: number;
  shown: string;
  measures: Measure[];
}

/** A measure of every cell, quantized to one byte per cell. */
export interface Measure {
  name: string;
  title: string;
  side: "key" | "people" | "value";
  lo: number | null;
  hi: number | null;
  format: "number" | "percent";
  scale: "linear" | "log";
  data: string;
  kinds?: string[];
}

/** The figures of the analyses, with the claims they support. */
export interface Figures {
  outcomes: string[];
  claims: Claim[];
  figures: Figure[];
}

/** A claim, and where its figure or table is. */
export interface Claim {
  figure: string;
  verdict: Verdict;
}

export interface Verdict {
  claim: string;
  verdict: string;
  why: string;
  test: string;
  effect: Effect | null;
  adjusted: number | null;
}

/** The number that a verdict rests on: a larger one speaks for the claim. */
export interface Effect {
  value: number | null;
  lo: number | null;
  hi: number | null;
  against: number | null;
  said: string;
}

/** A figure of the report. */
export interface Figure {
  name: string;
  label: string;
  title: string;
  caption: string;
  note: string;
  spec: Record<string, any>;
  paper: Paper | null;
  verdicts: Verdict[];
}

/** What the paper found, and the number it published. */
export interface Paper {
  finding: string;
  published: string;
}

/** The tokens, by their numbers. */
export interface Vocabulary {
  pieces: string[];
}

/** What people found, and their notes. */
export interface Annotations {
  annotations: Annotation[];
  notes: Record<string, string>;
}

/** What one annotator says about one cell. */
export interface Annotation {
  annotator: string;
  layer: number;
  cell: number;
  patterns: Pattern[];
  skipped: boolean;
}

export interface Pattern {
  triggers: number[];
  description: string;
  kind: "semantic" | "shallow";
}

/** The kinds of every cell. None are named if they were not computed. */
export interface Kinds {
  kinds: KindOfCell[];
  data: string;
}

/** A label that cells can have. */
export interface KindOfCell {
  name: string;
  title: string;
  meaning: string;
  number: string;
  below: boolean;
}

/** The cells of a layer, one column per measure. */
export interface LayerCells {
  layer: number;
  columns: Columns;
}

/** One list per measure, one entry per cell. The last four are there if the values were read. */
export interface Columns {
  max: (number | null)[];
  min: (number | null)[];
  trigger: (string | null)[];
  last: (string | null)[];
  next: (string | null)[];
  dead: (0 | 1)[];
  active?: (number | null)[];
  peak?: (number | null)[];
  promotes?: string[][];
  agreement?: (number | null)[];
  max_prob?: (number | null)[];
  norm?: (number | null)[];
}

/** The labels of a layer's cells: what a cell's first pattern says, by the cell's number. A cell without a pattern has none. */
export interface Labels {
  labels: Record<string, string>;
}

/** A cell. */
export interface PackedCell {
  address: string;
  layer: number;
  cell: number;
  sign: -1 | 1;
  dead: boolean;
  stats: CellStats;
  histogram: PackedHistogram | null;
  triggers: PackedTrigger[];
  negative: PackedTrigger[];
  values: Value[];
  similar_keys: [string, number][];
  similar_values: [string, number | null][];
  kinds?: CellKind[];
  gate?: Gate;
  patterns?: KeyPatterns[];
}

export interface CellStats {
  n: number;
  active: number | null;
  rms: number | null;
  mean: number | null;
  std: number | null;
  max: number | null;
  min: number | null;
}

/** Counts in bins of equal width between two edges. */
export interface PackedHistogram {
  edges: [number | null, number | null];
  counts: number[];
  n: number;
}

/** A trigger: an export consists mostly of these. */
export type PackedTrigger = [c: number | null, unit: number, position: number, before: number, after: number, count: number, tokens: string | string[], shades: string | null];

/** A cell's value, read through one lens. */
export interface Value {
  lens: string;
  norm: number | null;
  max_prob: number | null;
  entropy: number | null;
  promoted: [string, number | null][];
  demoted: [string, number | null][];
  agreement: Agreement | null;
  negative_agreement: Agreement | null;
  rank: number | null;
}

export interface Agreement {
  token: string;
  hits: number;
  of: number;
}

/** How a cell stands to one kind: a name of `Kinds`. */
export type CellKind = [name: string, has: boolean, number: number | null, threshold: number | null];

/** The gate of a cell: how often it is open, what the cell writes in the sign cases of gate and up, and the cosines of its
    weights. Up and value are taken in the cell's orientation. */
export interface Gate {
  open: number | null;
  open_plus: number | null;
  open_minus: number | null;
  closed_plus: number | null;
  closed_minus: number | null;
  gate_up: number | null;
  gate_value: number | null;
  up_value: number | null;
}

/** The patterns of one side of a key, its label first. */
export interface KeyPatterns {
  side: -1 | 1;
  kind: "both" | "none" | "semantic" | "shallow";
  read: number;
  patterns: FoundPattern[];
  needs: (number | null)[];
  scores: Record<string, MethodScore>;
}

/** A pattern that was found in a key's triggers (`store.patterns.Pattern`). */
export interface FoundPattern {
  kind: "semantic" | "shallow";
  description: string;
  triggers: number[];
  matches: number;
  hits: number;
  lift: number | null;
  q_value: number | null;
  auprc: number | null;
  f1: number | null;
  pearson: number | null;
  promoted: number | null;
  promoted_null: number | null;
  removed: number | null;
}

/** How well a method predicts where a key fires, on held-out text (`store.patterns.Score`). */
export interface MethodScore {
  auprc: number | null;
  lo: number | null;
  hi: number | null;
  auprc_99: number | null;
  f1: number | null;
  pearson: number | null;
}

/** The same cell in the run beside this one. */
export interface BesideCell {
  cell: PackedCell;
  overlap: Overlap;
  turned: boolean;
}

/** How far a cell's triggers agree in two runs; null if one of them has too few, or if the runs' tokens differ. */
export interface Overlap {
  top: number;
  triggers: number | null;
  last: number | null;
  next: number | null;
}

/** Whose values promote and demote the tokens of a page, and whose patterns name them. */
export interface Tokens {
  promoted: Record<string, Speaker[]>;
  demoted: Record<string, Speaker[]>;
  rules?: Record<string, Ranked[]>;
}

/** A cell whose value promotes or demotes a token. */
export type Speaker = [place: number, logit: number | null, rank: number];

/** A pattern by its rank among those of the run, with the place of its cell. The best have the smallest ranks. */
export type Ranked = [rank: number, place: number];

/** Units with triggers, and patterns, by word. */
export interface Words {
  words: Record<string, number[]>;
  patterns?: Record<string, Ranked[]>;
}

/** A page of units: their text, and whose triggers they hold. */
export interface Units {
  units: Record<string, Unit>;
}

export interface Unit {
  text: string;
  cells: Held[];
  negative: Held[];
}

/** A trigger in a unit. */
export type Held = [place: number, end: number];

/** A page of the run's patterns, ranked by AUPRC × the share of triggers that carry them. */
export interface RankedPatterns {
  patterns: RankedPattern[];
}

/** A pattern in a list of patterns. */
export type RankedPattern = [place: number, side: -1 | 1, number: number, kind: "semantic" | "shallow", description: string, auprc: number | null, covered: number, read: number];

/** Whether the model is loaded, and what a prompt may be. */
export interface Status {
  model: string;
  loaded: boolean;
  limits: Limits;
}

/** What one request may hold. */
export interface Limits {
  prompt_tokens: number;
  edits: number;
  prompt_characters: number;
  positions: number;
}

export interface SavedAnnotation {
  saved: boolean;
  annotation: Annotation;
}

export interface SavedNote {
  saved: boolean;
  note: Note;
}

export interface Note {
  layer: number;
  cell: number;
  text: string;
}

/** A text, read through the model. */
export interface Prompt {
  tokens: string[];
  position: number;
  token: string;
  edited: boolean;
  prediction: [string, number | null][];
  original: [string, number | null][];
  chosen: Chosen;
  layers: PromptLayer[];
}

/** The token the effects are on. */
export interface Chosen {
  piece: string;
  logit: number | null;
  p: number | null;
  original_logit: number | null;
  original_p: number | null;
}

export interface PromptLayer {
  layer: number;
  before: [string, number | null][];
  after: [string, number | null][];
  strongest: Contribution[];
  effective: Contribution[];
}

/** What a cell adds at the position. */
export interface Contribution {
  cell: number;
  m: number | null;
  strength: number | null;
  effect: number | null;
}

/** The file that `keyhole.load(edits=…)` takes. */
export interface EditsFile {
  keyhole: 1;
  model: EditedModel;
  edits: Edit[];
}

export interface EditedModel {
  fingerprint: string;
  layers: number;
  cells: number | number[];
}

/** A cell's coefficient, multiplied by `scale`. */
export interface Edit {
  layer: number;
  cell: number;
  scale: number;
  positions: number[] | null;
}

export interface AskPrompt {
  text: string;
  position: number | null;
  token: string | null;
  edits: Edit[];
}

export interface AskEdits {
  edits: Edit[];
}

/** Every error has this shape. */
export interface Error {
  error: Problem;
}

export interface Problem {
  code: "bad_host" | "bad_json" | "bad_request" | "busy" | "failed" | "no_model" | "no_token" | "not_allowed" | "not_found" | "not_json" | "not_possible" | "refused" | "run_changed" | "run_gone" | "too_large" | "too_long" | "too_slow" | "wrong_host" | "wrong_origin" | "wrong_value";
  message: string;
  detail: Record<string, any>;
}
