// Measures the overview in Chromium while slots change, for `greenroom bench dashboard`.

import http from "node:http";
import { PassThrough } from "node:stream";
import { createGunzip } from "node:zlib";
import { assert, scenario, until } from "./browser.js";

/** The bytes of the live stream up to the end of the snapshot, as they are sent with this encoding. */
function snapshotBytes({ url, admin_token: token }, encoding) {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${token}`, "accept-encoding": encoding };
    const request = http.get(`${url}/admin/live`, { headers }, (response) => {
      let sent = 0;
      const plain = response.headers["content-encoding"] === "gzip" ? createGunzip() : new PassThrough();
      plain.on("data", (text) => {
        if (text.includes("\n\n")) {
          resolve(sent);
          request.destroy();
        }
      });
      response.on("data", (chunk) => {
        sent += chunk.length;
        plain.write(chunk);
      });
    });
    // After `destroy`, the promise is resolved, and this changes nothing.
    request.on("error", reject);
  });
}

function percentile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
}

await scenario(async ({ page, settings }) => {
  await page.goto(settings.url);
  await page.getByLabel(/token/i).fill(settings.admin_token);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation").first().waitFor();

  await page.addInitScript(() => {
    const measured = { longest: 0, tasks: 0, frames: /** @type {number[]} */ ([]), last: 0 };
    Object.assign(window, { measured });
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        measured.longest = Math.max(measured.longest, entry.duration);
        measured.tasks += 1;
      }
    }).observe({ type: "longtask", buffered: true });
    const frame = (now) => {
      if (measured.last) measured.frames.push(now - measured.last);
      measured.last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  // The second visit is measured: the browser has the files, as an operator's has.
  await page.reload();
  const firstPicture = async () =>
    page.evaluate(() => performance.getEntriesByName("greenroom-slots-drawn")[0]?.startTime ?? 0);
  await until("all slots are drawn", async () => (await firstPicture()) > 0);
  const drawn = await firstPicture();
  await page.evaluate(() => {
    const { measured } = /** @type {any} */ (window);
    measured.frames = [];
  });
  await page.waitForTimeout(settings.time_ms);
  const measured = await page.evaluate(() => /** @type {any} */ (window).measured);
  const frames = measured.frames.sort((one, other) => one - other);
  assert(frames.length > 0, "the page drew no frame");
  const result = {
    first_picture_ms: drawn,
    longest_task_ms: measured.longest,
    long_tasks: measured.tasks,
    frame_p50_ms: percentile(frames, 0.5),
    frame_p99_ms: percentile(frames, 0.99),
    snapshot_bytes: await snapshotBytes(settings, "identity"),
    snapshot_gzip_bytes: await snapshotBytes(settings, "gzip"),
  };
  console.log(`measured: ${JSON.stringify(result)}`);
});
