// Made from schema/: python -m keyhole.web.typedefs

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
  passages: boolean;
  worth: string[];
  search: Searching;
  dead: number;
  packing: Packing;
  annotating: Annotating;
  beside: AboutBeside | null;
  patterns: AboutPatterns | null;
  export?: Export;
}

export interface AboutModel {
  name: string;
  family: string;
  signed: boolean;
  gated: boolean;
  made?: string;
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

/** What a search must know. */
export interface Searching {
  words: number;
  prior: number;
  most: number;
  speakers: number;
  texts: number;
}

/** How the large answers are packed. */
export interface Packing {
  page: number;
  separator: string;
  shades: string;
  units: number;
  passage: number;
}

/** What an annotation, a note and a tag may be. */
export interface Annotating {
  name: string;
  triggers: number;
  least: number;
  patterns: number;
  description: number;
  note: number;
  tag: string;
  tags: number;
  marked: number;
  kinds: ("semantic" | "shallow")[];
}

/** Another run, shown beside this one. */
export interface AboutBeside {
  name: string;
  model: string;
  sources: string[];
  same_model: boolean;
  same_text: boolean;
  why: string | null;
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

/** How the files of an export are read. Answers whose address has numbers are in packs of many (export/packs.py). */
export interface Export {
  packs: Record<string, number[][]>;
  stamp: string;
  part?: Part;
}

/** Which cells an export of a part of a run has. */
export interface Part {
  said: string;
  cells: number;
  spans: [number, number][];
}

/** The measures that the map of all cells can show, and in which pieces their numbers come. */
export interface CellMap {
  levels: number;
  unknown: number;
  bin: number;
  block: number;
  blocks: number;
  shown: string;
  measures: Measure[];
}

/** A measure of every cell. maps/NUMBER.json has its numbers; NUMBER is its place in the list. */
export interface Measure {
  name: string;
  title: string;
  side: "key" | "people" | "value";
  format: "number" | "percent";
  scale: "linear" | "log";
  kinds?: string[];
}

/** A measure of all cells, in bins: one byte per bin, layer by layer. */
export interface MeasureMap {
  name: string;
  lo: number | null;
  hi: number | null;
  low: number;
  high: number;
  unknown: boolean;
  data: string;
  strongest?: string;
  counts?: string;
}

/** The planes of all cells; none if they were not computed. */
export interface Planes {
  method: string;
  gated: boolean;
  planes: Plane[];
}

/** All values, or all keys, on a plane. points/NUMBER.json has the coordinates; NUMBER is its place in the list. */
export interface Plane {
  name: "keys" | "values";
  explained: number | null;
  shuffled: number | null;
  sample: number;
  width: number | null;
  height: number | null;
  tiles: number[][];
}

/** Where every cell lies on a plane, if one answer can hold them. */
export interface Points {
  name: string;
  data: string;
}

/** Some cells on a plane, with a measure of each: the strongest cell of every bin, or the cells of a tile. */
export interface ManyPoints {
  name: string;
  places: string;
  at: string;
  data: string;
  counts?: string;
}

/** A measure of single cells: of each layer, the cells from block × BLOCK on. One byte per cell, layer by layer. */
export interface MapCells {
  name: string;
  data: string;
}

/** Cells in the order of a measure, strongest first: of each layer, the ranks from block × BLOCK on. */
export interface MapRanks {
  name: string;
  data: string;
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

/** The cells that people marked with a star, tags or a note: a file to keep, and to import into another run of the model. */
export interface Collections {
  keyhole: 1;
  model: EditedModel;
  cells: Record<string, Marks>;
}

export interface EditedModel {
  fingerprint: string;
  layers: number;
  cells: number | number[];
}

/** What people say of a cell. */
export interface Marks {
  starred: boolean;
  tags: string[];
  note: string;
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

/** Random prefixes of the corpus. Every cell's examples below the top are some of these. */
export interface Sample {
  bands: [number, number][];
  prefixes: SampledPrefix[];
}

/** A random prefix of the corpus, with the text around it. */
export type SampledPrefix = [unit: number, position: number, before: number, after: number, tokens: string | string[]];

/** The columns of the table of all cells, by number. */
export interface CellTable {
  columns: CellColumn[];
  said: number;
}

/** A measure of every cell (`analyses.columns.Column`). */
export interface CellColumn {
  name: string;
  form: "count" | "flag" | "labels" | "level" | "number" | "share" | "text" | "token" | "tokens";
  title: string;
  means: string;
  side: "cell" | "key" | "people" | "value";
  missing: string | null;
  type: string;
  names: string[];
  blocks: number;
  size: number;
}

/** Values of one column for some cells, in the order of the axis: as text, or packed. */
export interface ColumnBlock {
  first: number;
  bytes: number;
  data?: string;
  texts?: (string | null)[];
}

/** Two runs on the overview. */
export interface Comparison {
  name: string;
  run: OtherRun;
  claims: ComparedClaim[];
  figures: ComparedFigure[];
  missing: string[];
}

/** What was scanned there. */
export interface OtherRun {
  model: AboutModel;
  shape: string;
  cells: number;
  corpus: AboutCorpus;
  config: AboutConfig;
  dead: number;
}

/** A claim on this run, and on the other (`analyses.beside.Compared`). */
export interface ComparedClaim {
  figure: string;
  here: Verdict;
  there: Verdict | null;
  result: "cannot be compared" | "differs" | "no clear difference";
  why: string;
  difference: Effect | null;
  adjusted: number | null;
}

/** A figure with the other run's lines in it, or with its own chart. */
export interface ComparedFigure {
  name: string;
  spec: Record<string, any>;
  other?: Record<string, any>;
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
  peak: (number | null)[];
  firing?: (number | null)[];
  active?: (number | null)[];
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
  similar_values: [string, number | null][] | null;
  kinds?: CellKind[];
  gate?: Gate;
  below?: Below;
  patterns?: KeyPatterns[];
  uses?: Uses;
}

export interface CellStats {
  n: number;
  active: number | null;
  firing: Firing | null;
  peak: number | null;
  rms: number | null;
  mean: number | null;
  std: number | null;
  max: number | null;
  min: number | null;
}

/** The share of sampled prefixes with a coefficient above a tenth of the cell's largest, and its 95 % interval. */
export interface Firing {
  share: number | null;
  lo: number | null;
  hi: number | null;
  n: number;
  of: number;
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

/** A cell's examples below the top. */
export interface Below {
  edges: (number | null)[];
  bands: Example[][];
  random: Example[];
}

/** A prefix of `Sample`, and the cell's coefficient with it. */
export type Example = [prefix: number, c: number | null];

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

/** Only what is known of a cell is there. */
export interface Uses {
  goes: GoesAt | null;
  leaks: InLeak[];
  edits: CellEdit[];
}

/** When pruning takes a cell. */
export interface GoesAt {
  method: string;
  scope: string;
  share: number | null;
}

/** A text that the model says by heart, and forgets if this cell and those before it are switched off. */
export interface InLeak {
  rank: number;
  method: string;
  place: number;
  cells: number;
  prefix: string;
  continuation: string;
}

/** An edit that the run's model had while it was scanned, also one that was baked into its weights. */
export interface CellEdit {
  scale: number | null;
  towards: string | null;
  by: number | null;
  replaced: boolean;
}

/** A layer in the run beside this one. */
export interface LayerBeside {
  columns: OtherColumns;
  overlap: LayerOverlap | null;
}

/** One list per measure, one entry per cell of the layer: the cell in the other run, and how far its triggers agree. */
export interface OtherColumns {
  max: (number | null)[];
  trigger: (string | null)[];
  last: (string | null)[];
  promotes?: string[][];
  triggers?: (number | null)[];
  last_overlap?: (number | null)[];
  next_overlap?: (number | null)[];
}

/** How far the cells of a layer agree in two runs. */
export interface LayerOverlap {
  top: number;
  n: number;
  turned: number;
  triggers: Mean;
  last: Mean;
  next: Mean;
}

/** A mean over cells with its 95 % interval (`analyses.compare.Mean`). */
export interface Mean {
  value: number | null;
  lo: number | null;
  hi: number | null;
  dealt: number | null;
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

/** Per token of a page: whose values promote and demote it, whose triggers end in it, contain it or are followed by it, and
    whose patterns name it. */
export interface Tokens {
  triggers: number;
  promoted: Record<string, Speaker[]>;
  demoted: Record<string, Speaker[]>;
  ends: Record<string, TokenKeys>;
  contains: Record<string, TokenKeys>;
  next: Record<string, TokenKeys>;
  cut?: Record<string, [number, number]>;
  rules?: Record<string, Ranked[]>;
}

/** A cell whose value promotes or demotes a token. */
export type Speaker = [place: number, logit: number | null, rank: number];

/** The keys whose triggers have one relation to one token. */
export interface TokenKeys {
  cells: number;
  hits: number;
  rows: Fires[];
}

/** A side of a key whose triggers have a relation to a token. */
export type Fires = [place: number, hits: number, of: number];

/** A pattern by its rank among those of the run, with the place of its cell. The best have the smallest ranks. */
export type Ranked = [rank: number, place: number];

/** Units with triggers, and patterns, by word. */
export interface Words {
  words: Record<string, number[]>;
  patterns?: Record<string, Ranked[]>;
}

/** A page of units: their text, and whose triggers they hold. */
export interface Units {
  triggers: number;
  units: Record<string, Unit>;
}

export interface Unit {
  text: string;
  starts: number[];
  cells: Held[];
  negative: Held[];
  few: Record<string, [number, number]>;
}

/** The triggers that end at one place of a unit. */
export type Held = [end: number, gaps: number[]];

/** A page of the run's patterns, ranked by AUPRC × the share of triggers that carry them. */
export interface RankedPatterns {
  patterns: RankedPattern[];
}

/** A pattern in a list of patterns. */
export type RankedPattern = [place: number, side: -1 | 1, number: number, kind: "semantic" | "shallow", description: string, auprc: number | null, covered: number, read: number];

/** Where consecutive units of the corpus are, and the documents that they are in. */
export interface Documents {
  first: number;
  starts: number[];
  documents: number[];
  about: Record<string, AboutDocument>;
}

export type AboutDocument = [first: number, units: number, beginning: string];

/** Consecutive tokens of the corpus. */
export interface Passage {
  first: number;
  tokens: string | string[];
}

/** Whether the model is loaded, and what a prompt may be. */
export interface Status {
  model: string;
  loaded: boolean;
  chat: boolean | null;
  limits: Limits;
}

/** What one request may hold. */
export interface Limits {
  prompt_tokens: number;
  edits: number;
  prompt_characters: number;
  positions: number;
  generated_tokens: number;
}

/** Which analyses the run has, and which are being made. */
export interface Coming {
  version: string;
  running: boolean;
  steps: string[];
  done: number;
  now: string;
  share: number | null;
  missing: string[];
}

/** A Parquet file, as bytes: not JSON. */
export interface ParquetFile {
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

export interface SavedMarks {
  saved: boolean;
  address: string;
  marks: Marks;
}

export interface SavedCollections {
  saved: boolean;
  cells: number;
  changed: number;
}

/** A text, read through the model; `layers` and `ranked` are of the pass with the edits. */
export interface Prompt {
  tokens: string[];
  position: number;
  token: string;
  edited: boolean;
  prediction: [string, number | null][];
  original: [string, number | null][];
  chosen: Chosen;
  layers: PromptLayer[];
  ranked: RankedCell[];
  without: Reading | null;
  problems: EditProblem[];
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

/** The same, among the cells of all layers. */
export interface RankedCell {
  cell: number;
  m: number | null;
  strength: number | null;
  effect: number | null;
  layer: number;
}

/** One pass through the model. */
export interface Reading {
  layers: PromptLayer[];
  ranked: RankedCell[];
}

/** An edit that was left out. */
export interface EditProblem {
  edit: number;
  message: string;
}

/** Cells switched off, each on its own. */
export interface Ablation {
  token: string;
  logit: number | null;
  p: number | null;
  everywhere: boolean;
  cells: Ablated[];
}

/** What the chosen token loses with a cell. */
export interface Ablated {
  layer: number;
  cell: number;
  logit: number | null;
  log_p: number | null;
}

/** What each layer does to the logit of the predicted token, at every position. */
export interface LayerEffects {
  tokens: string[];
  predicted: string[];
  p: (number | null)[];
  effects: (number | null)[][];
  edited: boolean;
}

/** A prompt as a program. */
export interface PythonCode {
  code: string;
}

/** The cell's coefficient at every token of a text, in the cell's orientation. */
export interface Tried {
  layer: number;
  cell: number;
  tokens: string[];
  coefficients: (number | null)[];
}

/** One line of the answer, which has one field: the prompt first, then the tokens of both sides in turns; an error is the last. */
export interface GenerateLine {
  prompt?: PromptPiece[];
  token?: GeneratedToken;
  error?: Problem;
}

/** A token that is continued. */
export type PromptPiece = [piece: string, special: boolean];

/** A token that was made. */
export interface GeneratedToken {
  side: "edited" | "original";
  piece: string;
  special: boolean;
  p: number | null;
  end: "context" | "length" | "token" | null;
}

export interface Problem {
  code: "bad_host" | "bad_json" | "bad_request" | "busy" | "failed" | "no_model" | "no_token" | "not_allowed" | "not_found" | "not_json" | "not_possible" | "refused" | "run_changed" | "run_gone" | "too_large" | "too_long" | "too_slow" | "wrong_host" | "wrong_origin" | "wrong_value";
  message: string;
  detail: Record<string, any>;
}

/** The nearest cells, the nearest first. */
export interface Nearest {
  tokens: string[];
  keys: Near[];
  values: Near[];
}

/** A cell, and how near it is. */
export type Near = [cell: string, measure: number | null];

/** The file that `keyhole.load(edits=…)` takes. */
export interface EditsFile {
  keyhole: 1;
  model: EditedModel;
  edits: Edit[];
}

/** A cell's coefficient, multiplied by `scale`; its value, replaced by `value`, or moved `towards` a token `by` a share of its
    length. */
export interface Edit {
  layer: number;
  cell: number;
  scale: number;
  positions: number[] | null;
  value?: number[];
  towards?: string;
  by?: number;
}

/** The sets that need no text; and whether a set may be named by a pattern. */
export interface OfferedSets {
  sets: OfferedSet[];
  patterns: boolean;
}

/** A set of cells that the run has. */
export interface OfferedSet {
  name: string;
  title: string;
  cells: number;
}

/** The cells of a set, if a prompt can take an edit of each. */
export interface CellSet {
  name: string;
  total: number;
  cells: [number, number][];
}

/** The edits of a file. */
export interface LoadedEdits {
  edits: Edit[];
  problems: EditProblem[];
}

/** Which cells, and which of their columns. */
export interface AskCells {
  columns: string[];
  filters: Record<string, string>;
  sort: string | null;
  descending: boolean;
}

/** What to mark a cell with; a field that is left out stays as it is. */
export interface AskMarks {
  layer: number;
  cell: number;
  starred?: boolean;
  tags?: string[];
  note?: string;
}

/** A collection to add to what is marked. Without `model`, addresses alone must fit. */
export interface ImportedCollections {
  cells: Record<string, Marks>;
  keyhole: 1;
  model?: EditedModel;
}

export interface AskPrompt {
  text: string;
  position: number | null;
  token: string | null;
  edits: Edit[];
}

/** Cells to switch off, each on its own. */
export interface AskAblation {
  text: string;
  cells: [number, number][];
  position: number | null;
  token: string | null;
  edits: Edit[];
  everywhere: boolean;
}

export interface AskLayers {
  text: string;
  edits: Edit[];
}

/** A text, and the cell whose key reads it. */
export interface AskTry {
  text: string;
  layer: number;
  cell: number;
}

export interface AskGenerate {
  text: string;
  edits: Edit[];
  length: number;
  temperature: number;
  seed: number;
  chat: boolean;
}

/** Either a cell, or a text, which the model reads. */
export interface AskNearest {
  cell?: string;
  text?: string;
}

export interface AskEdits {
  edits: Edit[];
}

export interface AskSet {
  name: string;
}

export interface AskLoad {
  file: string;
}

/** Every error has this shape. */
export interface Error {
  error: Problem;
}
