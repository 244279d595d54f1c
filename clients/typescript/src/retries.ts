// Which failures are tried again, and after which pause.

import { ApiError, ServerUnreachableError } from "./errors.js";

const RETRIED = new Set([408, 429, 502, 503, 504]);
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 8_000;
const LONGEST_RETRY_AFTER_MS = 60_000;

/** Whether another attempt may help. */
export function isRetryable(error: unknown): error is ApiError | ServerUnreachableError {
  return error instanceof ServerUnreachableError || (error instanceof ApiError && RETRIED.has(error.status));
}

/** How long to wait before the next attempt; `undefined` if the error is final. */
export function pauseMs(error: unknown, retries: number, maxRetries: number): number | undefined {
  if (retries >= maxRetries || !isRetryable(error)) return undefined;
  if (error instanceof ApiError && error.retryAfter !== undefined) {
    const pause = error.retryAfter * 1000;
    return pause > LONGEST_RETRY_AFTER_MS ? undefined : pause;
  }
  return backoffMs(retries);
}

/** Twice as long after each failure, and never the same for two clients. */
export function backoffMs(failures: number, first = FIRST_PAUSE_MS): number {
  const longest = Math.min(LONGEST_PAUSE_MS, first * 2 ** Math.min(failures, 16));
  return longest * (0.5 + Math.random() / 2);
}

/** Waits; throws the reason of the signal as soon as it is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}
