// The shapes of the values that pass between modules, for `tsc --checkJs`: see tools/lint_page.sh. The page does not
// load this file.

// ---- maths ----
type NormName = "batch" | "layer" | "instance" | "group" | "rms";
interface Norm {
    name: NormName; pattern: string; center: boolean; eps: number; ddof: number; eps_at: "var" | "std"; groups: number;
}
type Valid = boolean[] | boolean[][];
interface Partition { size: number; index: number[][] }
interface Moments { count: number[]; mean: number[]; m2: number[] }
interface Masking { valid?: Valid; offsets?: number[] }
interface Affine { weight?: number[] | null; bias?: number[] | null }
interface ForwardResult {
    x: number[][]; norm: Norm; weight: number[] | null; bias: number[] | null; offsets?: number[]; given: Moments |
    null;
    moments: Moments; partition: Partition; valid: boolean[][]; var: number[]; rstd: number[]; xhat: number[][]; y:
    number[][];
}
interface BackwardSums { dxhat: number[]; dxhat_xhat: number[]; dweight: number[] | null; dbias: number[] | null }
interface Gradients { dx: number[][]; dweight: number[] | null; dbias: number[] | null }
type ExplainedStep = { part: "forward" | "backward"; name: string; formula: string }
    & ({ of: "cells"; values: number[][] } | { of: "statistics" | "columns"; values: number[] });

// ---- maths: running statistics, layers and networks ----
/** `momentum` is the weight of the new batch; null: all batches weigh the same; "pooled": all elements do. */
interface RunningConvention { momentum: number | "pooled" | null; ddof: number }
interface Running extends RunningConvention {
    mean: number[]; var: number[]; count: number[]; batches: number; skipped: number;
}
/** Rows of one length, one after the other in one buffer. */
type Matrix = Float64Array[];
type Parameter = Matrix | Float64Array;
interface ForwardContext { training: boolean; rng?: { random(): number } | null }
interface Layer {
    parameters: Record<string, Parameter>; gradients: Record<string, Parameter>;
    x: any; y: Matrix; dy: Matrix | null; dx: Matrix | null;
    forward(x: any, context: ForwardContext): Matrix; backward(dy: Matrix): Matrix | null;
}
type LayerNorm = "none" | "batch" | "layer" | "rms";
type ActivationName = "tanh" | "relu" | "sigmoid" | "gelu";
interface NetworkOptions {
    vocabSize: number; block: number; embedding: number; hidden: number; depth: number; activation: ActivationName;
    norm: LayerNorm; normAt: "before" | "after"; ddof: number; dropout: number; initScale: number;
}
interface Network {
    layers: Record<string, Layer>; parameters: Record<string, Parameter>; gradients: Record<string, Parameter>;
    flatParameters: Float64Array; flatGradients: Float64Array;
    forward(x: number[][], context?: ForwardContext): Matrix; backward(dlogits: Matrix): Record<string, Parameter>;
}
interface Examples { x: number[][]; targets: number[] }
interface WordData { alphabet: string[]; train: Examples; heldOut: Examples }
interface Trainer {
    network: Network; readonly steps: number;
    step(): number; heldOutLoss(limit?: number): number; sample(count: number, rng?: { gumbel(): number }): string[];
}

// ---- shared ----
type Child = Node | string | number | null | undefined | Child[];
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: any) => unknown)>;
interface Codec<Value> { encode(value: Value): string; decode(text: string): Value; check?(value: Value): void }
interface Fields {
    part: string; theme: string;
    x: string[][]; norm: NormName; samples: number; groups: number; eps: number; ddof: number; eps_at: "var" | "std";
    weight: string[]; bias: string[];
    "why.of": WhyData; "why.growth": number; "why.lr": number; "why.step": number; "why.w1": number; "why.w2": number;
    "why.shift": number; "why.run": string;
    "table.cell": SheetCell;
    "backward.loss": LossKind; "backward.dy": string[][]; "backward.cell": string; "backward.step": string;
    "padding.first": string[][]; "padding.second": string[][]; "padding.rows": "given" | "computed";
    "padding.length": number; "padding.watched": number;
    "network.size": NetworkSize; "network.step": string; "network.cell": string; "network.words": string[];
    "network.seed": number; "network.lr": number; "network.path": DescentPath;
    "network.layer": string[]; "network.norm": "batch" | "layer"; "network.z": string;
    "running.batches": number; "running.size": number; "running.momentum": number; "running.x": string[];
    "running.shift": number;
    "training.lr": string; "training.step": number; "training.scale": "log" | "linear"; "training.steps": "early" |
    "even";
    "training.runs": string[] | null;
    "training.a": Setting; "training.b": Setting; "training.seed": number; "training.words": string;
}
type FieldName = keyof Fields;
/** The fields that hold a number. */
type NumberName = { [Name in FieldName]: Fields[Name] extends number ? Name : never }[FieldName];
interface State {
    field<Name extends FieldName>(name: Name, codec: Codec<any>, initial: Fields[Name]): void;
    fit(name: FieldName, say: () => string): void;
    get<Name extends FieldName>(name: Name): Fields[Name];
    set(values: Partial<Fields>): void;
    watch(names: readonly FieldName[], run: () => void): void;
    fragment(): string; flush(): void; apply(hash: string): void; complaints(): string;
    part(name: string): State;
}
/** A view of a part: its element, and what shows a new model in it. */
interface View<Model> { element: HTMLElement; update(model: Model): void }
interface Problem {
    cells: string[][]; rows: number; columns: number; x: number[][]; norm: Norm; valid: boolean[][];
    weight: number[]; bias: number[]; offsets: number[];
}
/** What code is written for. */
interface CodeInput extends Affine {
    x: number[][]; norm: Norm; valid?: Valid; offsets?: number[]; dy?: number[][] | null;
}
type Codes = Record<string, () => string>;
/** What distinguishes a series in a chart: numbers of a colour, a dash and a marker. */
interface Look { hue: number; dash: number; shape: number; thin?: boolean }
interface Series extends Partial<Look> { name: string; points: [number, number][] }
interface ChartData {
    series: Series[]; at: number | null; logarithmic: boolean; stretched: boolean; places: number[] | null;
    frame: { x: number; y: number[] } | null;
}
type Point = [number, number];
/** A question with its answers; `right` is the place of the right one, and `because` is shown after a choice. */
interface Question { ask: string; answers: string[]; right: number; because: string | (string | Node)[] }

// ---- why ----
type Student = [cgpa: number, iq: number, placed: number];
type WhyData = "inputs" | "hidden";
interface Player { button: HTMLElement; stop(): void }
/** The squared error of a linear model over its two weights: see descent.js. */
interface Bowl {
    mean: number[]; std: number[]; hessian: number[][]; best: number[]; lowest: number; large: number; small: number;
    targetMean: number; angle: number; largestRate: number; bestRate: number; condition: number;
}
interface Side { title: string; short: string; names: [string, string]; x: number[][]; bowl: Bowl }
interface SquareData { low: number; high: number; names: [string, string]; label: string }
interface SquarePlot {
    inner: number; scale: number; height: number; across(value: number): number; down(value: number): number;
    valueAt(x: number, y: number): Point;
}
interface SquareView extends View<SquareData> { plot(): SquarePlot }
interface ShiftResult {
    given: number[][]; own: number[][]; placed: number[]; bowl: Bowl; withGiven: number; withOwn: number;
}
interface SurfaceModel { names: [string, string]; label: string; bowl: Bowl; path: Point[]; step: number }

// ---- table ----
interface Place { row: number; column: number }
interface SheetCell extends Place { sheet: string }
interface Area extends Place { high: number; wide: number }
interface Boxes { rowStarts: number[]; columnStarts: number[] }
interface SheetShape extends Boxes { rows: number; columns: number }
interface BoxLines extends Boxes { beside?: string[] | null; above?: string[] | null }
/** What a cell shows: a text or a number, and "", "missing" or "wrong". */
interface CellContent { value: any; state: string }
interface Sheet {
    element: HTMLElement; grid: HTMLElement; box: HTMLElement;
    shape(wanted: SheetShape): void;
    write(read: (row: number, column: number) => CellContent, largest?: number | null): void;
    drawBoxes(wanted: BoxLines): void; focus(row: number, column: number): void;
    light(lit: Area | null, at: Place | null): void; setCaption(words: Node[]): void;
    tall(): boolean; cellWidth(): number; offsetOf(column: number): number;
}
interface TableView { problem: Problem; out: ForwardResult; at: SheetCell | null }
type ParameterName = "weight" | "bias";
interface TableActions {
    change(values: Partial<Fields>, key?: string | null): boolean; travel(direction: "undo" | "redo"): void;
    setCell(row: number, column: number, text: string): void; setTableText(text: string): void;
    insert(what: "row" | "column"): void; remove(what: "row" | "column"): void;
    setParameter(name: ParameterName, column: number, text: string): void; undoNormalization(): void;
    paste(event: ClipboardEvent): void; clearParameters(): void; showExample(): void;
    canUndo(): boolean; canRedo(): boolean;
}

// ---- backward ----
type LossKind = "given" | "cell" | "squares" | "sum";
interface Loss { kind: LossKind; given: number[][]; row: number; column: number }
interface BackwardModel {
    problem: Problem; out: ForwardResult; loss: Loss; total: number; dy: number[][]; row: number; column: number;
    explained: Map<string, ExplainedStep>; texts: string[][]; typed: number[][]; steps: BackwardStep[];
}
type BackwardStep = { key: string; name: string; title: string; why: string; paths: string[][]; edges: string[];
    symbols: string }
    & ({ of: "cells"; values: number[][] } | { of: "statistics" | "columns"; values: number[] });
interface MeasuredGradient { h: number; up: number; down: number; gradient: number }
interface Comparison {
    chosen: MeasuredGradient & { dx: number; relative: number }; worst: number; cells: number; jumps: number;
    reach: "table" | "shared" | "cell";
}
interface GraphNumber { value: number; gradient?: number; gradientName?: string }
interface TableUpdate {
    caption: string; rowNames: string[]; columnNames: string[]; texts: string[][];
    classes(i: number, j: number): string; chosen?(i: number, j: number): boolean; bad?(i: number, j: number): boolean;
    editable?: boolean;
}

// ---- sentences ----
interface Word {
    word: string; sentence: number; position: number; embedding: string[]; given: string[]; row: number[]; valid:
    boolean[];
    weights: { word: string; weight: number | undefined }[];
}
interface SentencesModel { words: Word[]; computed: boolean; lengths: number[]; watched: number }
interface Method { title: string; norm: Norm; includesPadding: boolean; hue: number }
interface WatchedRow { y: number[]; valid: boolean[]; mean: number[]; deviation: number[] }
interface MovedRow extends WatchedRow { alone: number[]; difference: number[]; moved: number }

// ---- network ----
type NetworkSize = "small" | "notes";
/** Steps of gradient descent that were taken: learning rates, and how often each. */
type DescentPath = [lr: number, steps: number][];
/** One line of the computation. A vector has one row; `axes` name what it has one or two of. */
interface NetworkStep {
    part: "forward" | "backward" | "update"; name: string; formula: string; axes: string[]; rows: number;
    columns: number; values: Float64Array;
}
type NetworkLabels = Record<string, string[]>;
/** The loss above and below, its slope, and the largest difference to the gradient of those that were tried. */
interface GradientCheck {
    h: number; up: number; down: number; slope: number; difference: number; largest: number; tried: number;
    elements: number;
}
interface NetworkExplanation {
    steps: NetworkStep[]; get(name: string): NetworkStep; check(name: string, k: number): GradientCheck | null;
    loss: number; lossAfter: number; learningRate: number; labels: NetworkLabels; n: number; ddof: number; eps: number;
    x: number[][]; targets: number[]; embedding: number;
}
interface NetworkModel extends NetworkExplanation { losses: number[]; headline: string }
interface MatrixUpdate {
    step: NetworkStep; labels: NetworkLabels; chosen: Point; texts: ((value: number) => string) | null;
    marked?: ((row: number) => string) | null;
}
/**
 * Left edge, top and width of each node; how tall nodes are, and what of it the picture does not get; the size of the
 * whole at least, and its largest width.
 */
interface GraphLayout {
    nodes: Record<string, [left: number, top: number, width: number]>; tall: number; size: number[]; most: number;
    edge: number; above: number; labelled: boolean;
}
type ValueReader = (name: string, i: number, j: number) => number;
interface SumOfProducts { open?: string; terms: number[][]; close?: string }
type NumberRule = (at: ValueReader, i: number, j: number, model: NetworkModel) => string[] | SumOfProducts;
// ---- running ----
interface Arrivals { batches: number[][]; own: { mean: number; var: number }[]; states: Running[] }

// ---- training ----
type RecordedNorm = "none" | "batch";
interface Run {
    norm: RecordedNorm; rate: number; loss: (number | null)[]; held_out: (number | null)[]; std: (number | null)[];
    saturated: number[]; silent: number[]; slope: number[]; into: number[][]; out: number[][];
}
interface Recorded {
    steps: number; batch: number; hidden: number; guessing: number; seeds: number; flat: number; silent: number; parts:
    number;
    reach: number; points: number[]; moments: number[]; runs: Map<string, Run>; rates: number[];
}
type LiveNorm = "none" | "batch" | "layer" | "rms";
interface Setting {
    norm: LiveNorm; normAt: "before" | "after"; lr: number; depth: number; initScale: number; batch: number;
    dropout: number;
}
interface Limits { above?: number; least?: number; most: number; whole?: boolean }
interface RunStart { words: string[]; seed: number; setting: Setting }
interface LayerReport { counts: number[]; saturated: number; gradient: number }
interface RunReport {
    step: number; training: Point[]; heldOut: Point[]; layers: LayerReport[]; guessing: number;
    diverged: { step: number; loss: number } | null; words: string[]; parameters: number; examples: number;
}
interface ShownRun { setting: Setting; report: RunReport | null }
interface LiveSide {
    field: "training.a" | "training.b"; worker: Worker | null; run: number; asked: number; busy: number;
    report: RunReport | null;
}
/** `advance` returns whether there is more to do. */
interface LiveRun { readonly steps: number; advance(until: number, milliseconds: number): boolean; report(): RunReport }

// ---- inside one module ----
type Token = [kind: string, text: string];
interface Arrays { floats(list: string): string; truths(list: string): string }
interface Prepared {
    x: number[][]; norm: Norm; dy: number[][] | null; columns: number; bySample: boolean; byRow: boolean; whole:
    boolean;
    valid: boolean[][]; offsets: number[]; groups: number; weight: number[]; bias: number[]; simple: boolean;
    inSteps: boolean;
    torchTakes: boolean;
}
type OnParameter = (name: ParameterName, column: number, text: string) => void;
interface ParameterSlider { element: HTMLElement; show(number: number, bound: number): void }
interface StripLine {
    element: HTMLElement; inSight: boolean; drawn: string; weight: ParameterSlider; bias: ParameterSlider; draw():
    void;
}
/** How far drawings and sliders reach. */
interface Ranges { axis: number[]; weights: number; biases: number }
interface StripsNow extends Ranges { problem: Problem; out: ForwardResult }
interface DrawnCell {
    element: HTMLElement; shown: any; state: string; length: number; bar?: number;
    row?: number; column?: number; wide?: number;
}
interface SheetLine { element: HTMLElement; head: HTMLElement; cells: DrawnCell[] }
interface SheetOptions {
    sheet: string; caption: Child; label: string; rowNames?: string[] | null;
    onpoint(at: SheetCell | null): void; onfocus(at: SheetCell): void;
    onkey(event: KeyboardEvent, at: SheetCell): boolean; onedit?: ((row: number, column: number, text: string) => void)
    | null;
}
type LossRule = (y: number, given: number, chosen: boolean) => number;
type ComparedModel = Pick<BackwardModel, "problem" | "out" | "loss" | "row" | "column"> & { dx: number[][]; paths:
    number[][][] };
interface StatisticAlone {
    rows: number[]; columns: number[]; x: number[][]; norm: Norm; valid: boolean[][]; weight: number[]; bias: number[];
    rstd: number; loss: Loss; rest: number;
}
interface Graph { boxes: Record<string, Point>; edges: Record<string, string> }
type EdgeState = "todo" | "done" | "lit";
interface GraphUpdate {
    center: boolean; lit: string[]; done: string[]; numbers: Record<string, GraphNumber>; target: string | null; label:
    string;
}
interface NumberWriter {
    model: Omit<BackwardModel, "steps">; plain(value: number): string; factor(value: number): string;
    product(...values: number[]): string; sum(cells: Point[], valuesAt: (cell: Point) => number[]): string;
    of(name: string, place?: Point): number; addition(...values: number[]): string; power(value: number): string;
    column: Point[]; shared: Point[]; degrees: string | null; rounded(): boolean;
}
interface StepRule {
    title: string | ((norm: Norm) => string); why: string | ((norm: Norm) => string); paths: string[][];
    numbers: ((writer: NumberWriter) => string) | null;
}
type OnChoose = (row: number, column: number) => void;
interface UpdatedTable {
    role?: string | null; makeCell(i: number, j: number): HTMLElement; onchoose: OnChoose;
    show(cell: HTMLElement, text: string, how: { chosen: boolean; bad: boolean; editable: boolean }): void;
}
type SentenceField = "padding.first" | "padding.second";
type MethodName = "all" | "layer" | "valid";
interface HistogramOptions { hue: number; reach: number; open?: boolean; flat?: number | null }
interface HistogramData { label: string; counts: number[]; most: number }
