/** What the API sends, as far as the page reads it, and what the page keeps. */

export interface Model {
  id: string;
  context: number;
  chat: boolean;
  modes: string[];
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
}

/** `/readyz`; of a device's own API: device, cloud and split. */
export interface Ready {
  status: string;
  reasons?: string[];
  device?: string | null;
  cloud?: boolean;
  split?: boolean;
  [other: string]: unknown;
}

export interface Stats {
  mode: string;
  device: string | null;
  replans: number;
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

/** Run of characters (Unicode code points) of one origin. */
export type Run = [origin: string, characters: number];

export interface Chunk {
  id: string;
  choices: {
    delta: { content?: string | null; reasoning_content?: string };
    finish_reason: string | null;
  }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
  tandem?: { origins: Run[]; stats?: Stats };
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
  runs: Run[];
  arrivals: Arrival[];
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  finish: string | null;
  reconnects: number;
  stats: Stats | null;
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
  device: string;
  rate: string;
  paced: boolean;
  budget: string;
  longest: string;
  temperature: string;
  system: string;
  origins: boolean;
}
