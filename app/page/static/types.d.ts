/** What the API sends, as far as the page reads it, and what the page keeps. */

/** A model that takes part in answers. */
export interface Part {
  role: "target" | "drafter" | "expander" | "device";
  model: string;
  /** null: not known to the server, as are bytes. */
  parameters: number | null;
  bytes: number | null;
  demo: boolean;
  devices: string[];
}

/** A question to try a model with; mode null: the server's choice. */
export interface Example {
  question: string;
  mode: string | null;
  /** Further fields of the request's `tandem`. */
  options: Record<string, string | number>;
}

export interface Model {
  id: string;
  aliases: string[];
  parent: string | null;
  context: number;
  chat: boolean;
  modes: string[];
  objectives: string[];
  parts: Part[];
  demo: boolean;
  about: string;
  examples: Example[];
}

export interface Device {
  name: string;
  profile: string;
  model: string;
  rtt_s: number;
  sessions: number;
  capacity: number;
  battery: number | null;
  emulated: boolean;
  dialled_in: boolean;
  energy_j: number;
  decode_token_s: number;
  models: { name: string }[];
  link?: Link | null;
}

/** Bandwidth and loss of a device's link; null: no limit, or not known. */
export interface Link {
  up_bytes_per_s: number | null;
  down_bytes_per_s: number | null;
  loss: number;
}

export interface Replica {
  name: string;
  model: string;
  sessions: number;
  rests: boolean;
  refusal: string | null;
  waiting: number;
  room: number;
  blocks_free: number;
  blocks_total: number;
  preempted: number;
}

/** An answer that is being given. */
export interface UnderWay {
  request: number;
  account: string;
  mode: string;
  endpoints: Record<string, string>;
  tokens: number;
  origin: string;
}

export interface Fleet {
  pools: Record<string, Replica[]>;
  devices: Device[];
  missing: string[];
  requests: UnderWay[];
  /** Orders in force. */
  drained: Record<string, Replica[]>;
  stopped: string[];
  links: Record<string, { cut: boolean }>;
  error?: { message: string };
}

/** `/readyz`; of a device's own API: device, cloud and split. */
export interface Ready {
  status: string;
  reasons?: string[];
  device?: string | null;
  cloud?: boolean;
  split?: boolean;
  devices?: number;
  missing?: string[];
  refused?: string[];
  gateway?: string;
  /** What each mode of each model lacks; "": nothing. Modes that the server is not set up for are not there. */
  modes?: Record<string, Record<string, string>>;
  [other: string]: unknown;
}

export interface Stats {
  mode: string;
  device: string | null;
  /** Times that the answer went on elsewhere, and why; older servers do not tell. */
  moves?: { position: number; words: string }[];
  timing: { ttft_s: number; total_s: number; stages_s: Record<string, number> };
  tokens: {
    output: number;
    by_origin: Record<string, number>;
    server_in: number;
    server_out: number;
    device_in: number;
    device_out: number;
  };
  reader: { rate: number; stall_s: number; buffer_max: number } | null;
  cost: { usd: number; joules: number };
  modes: Record<string, Record<string, unknown>>;
}

export interface Expected {
  value: number;
  low: number;
  high: number;
}

/** What was expected of an answer in a mode; figures as in `Why.came`. */
export interface Outlook {
  mode: string;
  device: string | null;
  ttft_s: Expected;
  tpot_s: Expected;
  stall_s: Expected;
  usd: Expected;
  joules: Expected;
  quality: number;
  leaves: string;
}

/** Reasons of the choice of mode and device. */
export interface Why {
  chosen: Outlook | null;
  came: { ttft_s: number; tpot_s: number; stall_s: number; usd: number; joules: number } | null;
  runner_up: Outlook | null;
  by_usd: number | null;
  ways: number;
  tried: boolean;
  limit_missed: boolean;
  changes: { position: number; chosen: Outlook }[];
  replaced: Record<string, number> | null;
}

/** A setting of an experiment that can be moved. */
export interface Setting {
  key: string;
  label: string;
  least: number | null;
  most: number | null;
  choices: string[];
  default: number | string | null;
}

export interface Experiment {
  name: string;
  title: string;
  about: string;
  settings: Setting[];
  vary: Record<string, (number | string)[]>;
  /** Names of settings, by key. */
  labels: Record<string, string>;
}

export interface Spread {
  mean: number;
  p99: number;
}

/** Figures of one simulation. */
export interface Point {
  settings: Record<string, number | string>;
  summary: {
    requests: number;
    failed: number;
    requests_per_s: number;
    tokens_per_s: number;
    usd: number;
    reading: { stalled_share: number } | null;
    ttft_s: Spread | null;
    tpot_s: Spread | null;
    e2e_s: Spread | null;
  };
  curves: Record<"ttft_s" | "tpot_s" | "e2e_s", number[]>;
}

export type ExperimentEvent =
  | { type: "begun"; total: number; points: number }
  | { type: "progress"; done: number }
  | ({ type: "point" } & Point)
  | { type: "done" }
  | { type: "refused" | "failed"; message: string };

/** An experiment that was run here. */
export interface Outcome {
  experiment: Experiment;
  settings: Record<string, number | string>;
  state: "running" | "done" | "stopped" | "failed";
  done: number;
  total: number;
  points: Point[];
  error: string;
}

/** A line of Prometheus's text format. */
export interface Series {
  name: string;
  labels: Record<string, string>;
  value: number;
}

/** Metrics as they were at a time of this browser's clock. */
export interface Sample {
  at_s: number;
  series: Series[];
}

export interface Line {
  name: string;
  points: { x: number | string; y: number }[];
}

/** Run of characters (Unicode code points) of one origin. */
export type Run = [origin: string, characters: number];

export interface Chunk {
  id: string;
  choices: {
    delta: { content?: string | null; reasoning_content?: string };
    finish_reason: string | null;
  }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
  tandem?: { origins: Run[]; stats?: Stats; why?: Why | null };
  error?: { message: string; code: string | null };
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Tokens that came together, `at_s` seconds after the question was sent, with the share of each origin. */
export interface Arrival {
  at_s: number;
  tokens: number;
  runs: Run[];
}

export interface Answer {
  asked: string;
  model: string;
  rate: number;
  text: string;
  thoughts: string;
  /** Fields of the request's `tandem` in place of the reader's choices. */
  options?: Record<string, string | number>;
  runs: Run[];
  arrivals: Arrival[];
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  finish: string | null;
  reconnects: number;
  stats: Stats | null;
  why?: Why | null;
  error: string | null;
}

export interface Turn {
  question: string;
  answers: Answer[];
  /** The answer with which the conversation goes on. */
  picked: number;
}

export interface Conversation {
  id: string;
  changed: number;
  turns: Turn[];
}

/** What the reader chose; empty texts leave the choice to the server. */
export interface Choices {
  model: string;
  mode: string;
  compare: boolean;
  other: string;
  objective: string;
  privacy: string;
  device: string;
  rate: string;
  paced: boolean;
  budget: string;
  longest: string;
  temperature: string;
  system: string;
  origins: boolean;
}
