// Tests approvals, search and login: a click decides only the call under it, the shown hits belong
// to the query in the field, and a link leads to the page that it names.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawn, spawnSync } from "node:child_process";

// Starts a server with API keys. Returns its address, the keys, and a function that ends it.
async function serverWithKeys(binary, grants) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "keys-"));
  const run = (...args) => {
    const done = spawnSync(binary, [...args, "--data", folder], { encoding: "utf8" });
    assert.equal(done.status, 0, done.stderr);
    return done.stdout;
  };
  const made = run("append", "new", "message", "user", "a question").match(/[0-9a-f-]{36}/)[0];
  const keys = {};
  for (const [name, role] of Object.entries(grants)) {
    keys[name] = JSON.parse(run("keys", "create", name, "--role", role, "--json")).key;
  }
  const server = spawn(binary, ["serve", "--json", "--data", folder, "--listen", "127.0.0.1:0"]);
  const first = await new Promise((resolve, reject) => {
    let text = "";
    server.stdout.on("data", (part) => {
      text += part;
      if (text.includes("\n")) resolve(JSON.parse(text.split("\n")[0]));
    });
    server.on("exit", () => reject(new Error("the server ended")));
  });
  const close = async () => {
    const ended = new Promise((resolve) => server.on("exit", resolve));
    server.kill();
    await ended;
    fs.rmSync(folder, { recursive: true });
  };
  return { base: first.inspector.replace(/\/$/, ""), keys, made, close };
}

export function formTests({ test, opened, go, agent, binary, axe, small, own, SIZES }) {
  const asks = (id, command) =>
    agent.run("append", small, "-b", "main", "call", "--needs-approval", id, "bash", JSON.stringify({ command }));
  const waiting = () => agent.run("pending", small, "--json");

  test("repeated clicks do not decide the next call", async () => {
    for (const javaScriptEnabled of [true, false]) {
      const name = `click-${javaScriptEnabled}`;
      asks(`${name}-1`, `${name} first`);
      asks(`${name}-2`, `${name} second`);
      const page = await opened({ javaScriptEnabled });
      await go(page, "/approvals");
      const button = page.locator("article", { hasText: `${name} first` }).getByRole("button", { name: "Approve" });
      await button.scrollIntoViewIfNeeded();
      await page.waitForTimeout(1200);
      const { x, y, width, height } = await button.boundingBox();
      const spot = [x + width / 2, y + height / 2];
      await page.mouse.click(...spot);
      if (!javaScriptEnabled) await page.waitForURL(/call=/);
      for (let again = 0; again < 4; again += 1) {
        await page.waitForTimeout(200);
        await page.mouse.click(...spot);
      }
      await page.getByText("Approved: bash").first().waitFor();
      assert.ok(waiting().includes(`${name}-2`), "the next call was approved, unseen");
      assert.ok(!waiting().includes(`${name}-1`));
      await page.done();
      agent.run("deny", small, `${name}-2`, "--reason", "over");
    }
  });

  test("a pending call shows the user's message, and a decided call shows the reason", async () => {
    agent.run("append", small, "-b", "main", "message", "user", "Clean the <build> folder, please");
    asks("why-1", "rm -rf build");
    const page = await opened();
    await go(page, "/approvals");
    const card = page.locator("article", { hasText: "rm -rf build" });
    assert.match(await card.innerText(), /Clean the <build> folder/);
    await page.locator(".live[data-state=open]").waitFor();
    agent.run("deny", small, "why-1", "--reason", "it is shared");
    await page.getByText(/^Denied: bash at #\d+ .*it is shared/).waitFor();
    // A new call must not move the card.
    const top = (await card.boundingBox()).y;
    asks("why-2", "ls build");
    await page.locator("article", { hasText: "ls build" }).waitFor();
    assert.ok(Math.abs((await card.boundingBox()).y - top) < 200, "the card has moved");
    assert.ok((await page.locator("article", { hasText: "ls build" }).boundingBox()).y > top);
    agent.run("deny", small, "why-2", "--reason", "over");
    await page.done();
  });

  test("a forged address shows no decision", async () => {
    const page = await opened();
    await go(page, "/approvals?decided=approved&tool=PWNED+call+us");
    assert.ok(!(await page.locator("main").innerText()).includes("PWNED"));
    await page.done();
  });

  test("old hits are marked as busy while a search runs", async () => {
    for (const [address, field, list] of [["/search?q=error", "#q", "#found"], ["/", "input[name=title]", "#list"]]) {
      const page = await opened();
      await go(page, address);
      let answer;
      const held = new Promise((resolve) => { answer = resolve; });
      await page.route(/marmot/, async (route) => { await held; await route.continue(); });
      await page.locator(`main ${field}`).fill("marmot");
      await page.locator(`${list}[aria-busy=true]`).waitFor();
      await page.getByText("searching…").waitFor();
      answer();
      await page.locator(`${list}:not([aria-busy])`).waitFor();
      assert.equal(await page.getByText("searching…").count(), 0);
      await page.done();
    }
  });

  test("a list shows how many conversations match", async () => {
    const page = await opened();
    await go(page, "/");
    const said = async () => (await page.locator("#list .count").innerText()).trim();
    const all = await said();
    assert.match(all, /^[\d,]+ conversations$/);
    await go(page, "/?source=swe-agent");
    assert.match(await said(), new RegExp(`^[\\d,]+ of ${all}$`));
    await page.locator("input[name=source]").fill("no-such-source");
    await page.getByText("A source must match completely").waitFor();
    assert.match(await said(), /^0 of /);
    await go(page, "/");
    await page.locator(".live[data-state=open]").waitFor();
    agent.run("append", "new", "message", "user", "One more than there were");
    const more = (Number(all.replace(/\D/g, "")) + 1).toLocaleString("en-US");
    await page.locator("#list .count", { hasText: `${more} conversations` }).waitFor();
    await page.done();
  });

  test("a login leads to the linked event, and a team's key to its namespace", async () => {
    const server = await serverWithKeys(binary, { eyes: "reader:default", team: "reader:team-a" });
    try {
      const log = async (page, key) => {
        await page.locator("input[name=key]").fill(key);
        await page.getByRole("button", { name: "Log in" }).click();
        await page.waitForURL((url) => url.pathname !== "/login");
      };
      const page = await opened();
      await page.goto(`${server.base}/c/${server.made}#e2`);
      await log(page, server.keys.eyes);
      assert.equal(new URL(page.url()).hash, "#e2");
      assert.match(await page.locator(".who").innerText(), /eyes/);
      const team = await opened({ viewport: SIZES[1].viewport });
      await team.goto(`${server.base}/`);
      await log(team, server.keys.team);
      assert.equal(new URL(team.url()).pathname, "/@team-a/");
      assert.ok((await team.locator("main").innerText()).includes("Conversations"));
      const over = await team.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} px too wide`);
      await page.done();
      await team.done();
    } finally {
      await server.close();
    }
  });

  test("on a phone the table of branches and the tabs fit the screen", async () => {
    const page = await opened(SIZES[1]);
    await go(page, `${own}/branches`);
    const hidden = await page.evaluate(() => {
      const parts = document.querySelectorAll("table.rows td, table.rows th[scope=row], nav.tabs a, nav.views a");
      return [...parts].filter((part) => part.getBoundingClientRect().right > innerWidth).map((part) => part.innerText);
    });
    assert.deepEqual(hidden, []);
    await page.done();
  });

  test("table headers align with their columns", async () => {
    const page = await opened();
    await go(page, `${own}/tools`);
    const off = await page.evaluate(() => {
      const lefts = (cells) => [...cells].map((cell) => Math.round(cell.getBoundingClientRect().left));
      const table = document.querySelector("table.calls");
      return [lefts(table.tHead.rows[0].cells), lefts(table.tBodies[0].rows[0].cells)];
    });
    assert.deepEqual(off[0], off[1]);
    await page.done();
  });

  test("the landmarks of a page have unique names", async () => {
    for (const address of ["/", "/search?q=error", "/tools", `${own}/tools`, `${own}/branches`, `${own}/request`, "/approvals", "/store"]) {
      const page = await opened();
      await go(page, address);
      await page.evaluate(axe);
      const found = await page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { runOnly: ["landmark-unique"] });
        return violations.flatMap(({ nodes }) => nodes.map((node) => node.html));
      });
      assert.deepEqual(found, [], address);
      await page.done();
    }
  });
}
