// Tests long texts in a real browser: their ends, their lines, and links to the transcript.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

const LINES = 30_000;

// A conversation with a log of megabytes, an edit, and a failure whose error is at the end.
function logs(agent) {
  const made = agent.run("append", "new", "message", "user", "Look into the log").trim().split("\n").pop();
  const id = made.match(/[0-9a-f-]{36}/)[0];
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "log-"));
  const file = path.join(folder, "log.txt");
  const lines = Array.from({ length: LINES }, (_, line) => `${line + 1}: something happened <here> & there`);
  fs.writeFileSync(file, lines.join("\n"));
  agent.run("append", id, "call", "log", "bash", '{"command":"cat all-of-it.log"}');
  agent.run("append", id, "result", "log", `@${file}`);
  fs.rmSync(folder, { recursive: true });
  const edit = { path: "a.rs", oldText: 'let a = "<x>";\nlet b;', newText: 'let a = "y";\nlet c;' };
  agent.run("append", id, "call", "edit", "edit", JSON.stringify(edit));
  agent.run("append", id, "result", "edit", "done");
  agent.run("append", id, "call", "make", "bash", '{"command":"make"}');
  agent.run("append", id, "result", "make", "--failed", "Exit code 1\ncc a.c\na.c:1: error: no such header", "nothing");
  return `/c/${id}`;
}

export function texts({ test, opened, go, checkWidth, checkForEveryReader, agent }) {
  const read = logs(agent);
  const PAGES = [`${read}/text/4?branch=main`, `${read}/call/log?branch=main`];

  test("a long text has links to its end, to a line and back", async () => {
    for (const address of PAGES) {
      for (const javaScriptEnabled of [true, false]) {
        const page = await opened({ javaScriptEnabled });
        await go(page, address);
        await page.getByRole("link", { name: "To the end" }).first().click();
        await page.locator(`#L${LINES}`).waitFor();
        await page.getByRole("link", { name: "Earlier" }).first().click();
        await page.locator(`#L${LINES - 500}`).waitFor();
        await page.getByRole("spinbutton", { name: "Line" }).fill("12345");
        await page.getByRole("button", { name: "Go" }).click();
        await page.locator("#L12345", { hasText: "12345: something happened <here>" }).waitFor();
        await page.getByRole("link", { name: "Continue" }).first().click();
        await page.locator("#L12800").waitFor();
        await page.getByRole("link", { name: "To the beginning" }).first().click();
        await page.locator("#L1").waitFor();
        assert.equal(await page.getByRole("link", { name: "Earlier" }).count(), 0);
        await page.done();
      }
      const page = await opened({ viewport: { width: 380, height: 800 } });
      await go(page, address);
      await checkWidth(page, address);
      await checkForEveryReader(page, address);
      await page.done();
    }
  });

  test("a link to a line highlights only that line", async () => {
    for (const javaScriptEnabled of [true, false]) {
      const page = await opened({ javaScriptEnabled });
      await go(page, `${read}/text/4?branch=main&at=7#L7`);
      await page.locator("#L20 a.n").click();
      await page.waitForURL(/#L20$/);
      if (javaScriptEnabled) {
        await page.waitForURL(/at=20#L20$/);
        assert.equal(await page.locator("li.hit").getAttribute("id"), "L20");
      }
      const grounds = await page.locator("ol.lines li").evaluateAll((lines) => lines
        .filter((line) => getComputedStyle(line).backgroundColor !== "rgba(0, 0, 0, 0)").map((line) => line.id));
      assert.deepEqual(grounds, ["L20"]);
      await page.done();
    }
    // On the page of a call, where `at=` does not name a line, the parameter must stay.
    const page = await opened();
    await go(page, `${read}/call/log?branch=main&at=3&end=4#L7`);
    await page.locator("#L20 a.n").click();
    await page.waitForURL(/at=3&end=4#L20$/);
    await page.done();
  });

  test("the pages of a text, a call and an event link to the transcript", async () => {
    for (const address of [...PAGES, `${read}/e/4`]) {
      const page = await opened();
      await go(page, address);
      assert.match(await page.locator("main").innerText(), /cat all-of-it\.log/);
      await page.getByRole("link", { name: "in the transcript" }).last().click();
      await page.waitForURL(/around=4.*#e4$/);
      assert.equal(await page.locator("[data-item].at").getAttribute("id"), "e3");
      await page.done();
    }
    const page = await opened();
    await go(page, `${read}/e/4`);
    await page.getByRole("link", { name: "bash" }).click();
    await page.waitForURL(/\/call\/log/);
    await page.done();
  });

  test("an edit is shown as a diff, and a failure with its error", async () => {
    const page = await opened();
    await go(page, `${read}/call/edit?branch=main`);
    const old = await page.locator(".lines-diff li.a code").allTextContents();
    assert.deepEqual(old, ['let a = "<x>";', "let b;"]);
    await page.getByText("All arguments, as written").click();
    await page.locator("#as-written pre").waitFor();
    await checkForEveryReader(page, "an edit");
    await go(page, `${read}/tools?branch=main&outcome=failed`);
    assert.match(await page.locator("table.calls").innerText(), /a\.c:1: error: no such header/);
    await go(page, read);
    assert.match(await page.locator(".call.bad .why").innerText(), /a\.c:1: error/);
    await page.done();
  });
}
