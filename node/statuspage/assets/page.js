"use strict";

// All data from the node are inserted as text (textContent), never as markup: other nodes choose some of the names.

const byId = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
const phases = {
  starting: "starting", joining: "joining", state_sync: "state sync", catching_up: "catching up", running: "running",
};

const quantity = (unit, options) => new Intl.NumberFormat("en", { style: "unit", unit, unitDisplay: "short", ...options });
const threeDigits = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
const byteUnits = [
  quantity("byte", { unitDisplay: "long", maximumFractionDigits: 0 }),
  ...["kilobyte", "megabyte", "gigabyte", "terabyte", "petabyte"].map((unit) => quantity(unit, threeDigits)),
];

function bytes(n) {
  let u = 0;
  while (n >= 999.5 && u < byteUnits.length - 1) { n /= 1000; u++; }
  return byteUnits[u].format(n);
}

const tenths = quantity("second", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const [wholeSeconds, wholeMinutes, wholeHours] = ["second", "minute", "hour"].map((unit) => quantity(unit, { maximumFractionDigits: 0 }));

function dateTime(t) { return new Date(t).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }); }

function duration(seconds) {
  if (seconds < 10) return tenths.format(seconds);
  if (seconds < 120) return wholeSeconds.format(seconds);
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return wholeMinutes.format(minutes);
  return wholeHours.format(Math.floor(minutes / 60)) + " " + wholeMinutes.format(minutes % 60);
}

function element(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// setText does not touch equal text, so that a selection stays and screen readers do not announce it twice.
function setText(e, text) { if (e.textContent !== text) e.textContent = text; }

// list fills a <dl> with rows [name, value, class]; rows with an undefined value are omitted.
function list(id, rows) {
  const dl = byId(id), wanted = rows.filter((r) => r[1] !== undefined);
  const same = dl.children.length === 2 * wanted.length && wanted.every((r, i) => dl.children[2 * i].textContent === r[0]);
  if (!same) dl.replaceChildren(...wanted.flatMap((r) => [element("dt", r[0]), element("dd")]));
  wanted.forEach((r, i) => {
    setText(dl.children[2 * i + 1], r[1]);
    dl.children[2 * i + 1].className = r[2] || "";
  });
}

// ---- The figures

function show(s) {
  const running = s.phase === "running", blocks = s.catch_up && s.catch_up.state === "catch_up", early = s.phase === "joining" || s.phase === "starting" || blocks; // CometBFT does not run yet
  setText(byId("moniker"), s.node.moniker || s.node.id);
  setText(byId("chain-id"), s.node.chain_id);
  setText(byId("phase"), phases[s.phase] || s.phase);
  byId("phase").classList.toggle("running", running);
  document.title = (s.node.moniker || "Starling") + " · " + (phases[s.phase] || s.phase);

  const blockAge = (Date.parse(s.time) - Date.parse(s.chain.block_time)) / 1000;
  const hasBlock = Date.parse(s.chain.block_time) > 0;
  const chainPeers = s.chain.peer_list || [];
  list("card-now", [...standing(s.chain.validator, early),
    ["Stage", early && s.catch_up ? s.catch_up.state : undefined],
    ["Peers", early ? undefined : count.format(s.chain.peers), s.chain.peers === 0 ? "bad" : ""],
    ["Up since", Date.parse(s.node.started) > 0 ? dateTime(s.node.started) : undefined],
    ["Up for", Date.parse(s.node.started) > 0 ? duration(Math.max((Date.parse(s.time) - Date.parse(s.node.started)) / 1000, 0)) : undefined],
  ]);
  byId("connected").hidden = chainPeers.length === 0;
  setText(byId("connected-title"), plural(s.chain.peers, "peer"));
  byId("connected-peers").replaceChildren(...chainPeers.map(chainPeerRow));
// A card is shown once it has a non-zero value.
  card("card-chain", s.chain.height > 0 || hasBlock);
  card("card-tree", s.tree.keys > 0);
  card("card-disk", s.disk.known);
  card("caches", (s.caches || []).some((c) => c.hits + c.misses > 0));
  list("card-chain", [
    ["Height", count.format(s.chain.height)],
    ["Queries from", s.chain.oldest_height > 0 ? "height " + count.format(s.chain.oldest_height) : undefined],
    ["Last block", hasBlock ? duration(Math.max(blockAge, 0)) + " ago" : s.chain.height > 0 ? undefined : "none yet"],
    ["Between blocks", s.chain.block_seconds > 0 ? duration(s.chain.block_seconds) : undefined],
    ["Last transaction", s.chain.last_tx_height > 0 ? "block " + count.format(s.chain.last_tx_height) + ", " + duration(Math.max((Date.parse(s.time) - Date.parse(s.chain.last_tx_time)) / 1000, 0)) + " ago" : undefined],
    ["Waiting transactions", early ? undefined : count.format(s.chain.waiting_txs)],
    ["Catching up", early ? undefined : s.chain.catching_up ? "yes" : "no"],
    ["Headers missing for evidence", s.chain.missing_headers > 0 ? count.format(s.chain.missing_headers) : undefined, "bad"],
    ["App hash", s.chain.app_hash || "none yet", "hash"],
  ]);
  list("card-tree", [
    ["Keys", count.format(s.tree.keys)],
    ["Data", bytes(s.tree.bytes)],
    ["Chunks", count.format(s.tree.chunks)],
    ["Levels of the tree", String(s.tree.height)],
    ["Memory", bytes(s.tree.memory_bytes)],
    ["Heights in use", count.format(s.tree.versions)],
    ["Memory for older heights", bytes(s.tree.held_bytes)],
    ["Snapshots to join from", s.snapshots && s.snapshots.length ? s.snapshots.map((h) => count.format(h)).join(", ") : "none"],
  ]);
  const low = s.disk.known && s.disk.min_free_bytes > 0 && s.disk.free_bytes < 2 * s.disk.min_free_bytes;
  list("card-disk", [
    ["Free space", s.disk.known ? bytes(s.disk.free_bytes) : "unknown", low ? "bad" : ""],
    ["Node stops below", s.disk.min_free_bytes > 0 ? bytes(s.disk.min_free_bytes) : "never"],
    ["Height on disk", s.flusher.safe_height > 0 ? count.format(s.flusher.safe_height) : undefined],
    ["Unflushed", s.flusher.safe_height === 0 ? undefined : plural(s.flusher.lag_blocks, "block") + ", " + bytes(s.flusher.lag_bytes)],
    ["Oldest unflushed block", s.flusher.lag_blocks > 0 ? duration(s.flusher.lag_seconds) + " old" : undefined],
  ]);
  list("card-node", [
    ["Version", s.node.version || "unknown"],
    ["App version", String(s.node.app_version)],
    ["CometBFT", s.node.cometbft_version],
    ["Node id", s.node.id, "hash"],
  ]);
  showCaches(s.caches || []);
  showJoin(s.join, s.phase);
  showCatchUp(s.catch_up);
  showStorage(s.sharded);
  showRDMA(s.rdma);
}

// ---- RDMA channels

function showRDMA(rdma) {
  byId("rdma").hidden = !rdma;
  if (!rdma) return;
  byId("rdma-fix").hidden = byId("rdma-table").hidden = true;
  if (rdma.missing) {
    setText(byId("rdma-line"), "RDMA is enabled, but was not possible when this node started: " + rdma.missing + ". All responses use TLS.");
    byId("rdma-fix").hidden = false;
    setText(byId("rdma-fix"), "Fix: " + rdma.fix + "; then restart the node. “starlingd rdma check” has details.");
    return;
  }
  byId("rdma-table").hidden = rdma.peers.length === 0;
  setText(byId("rdma-line"), plural(rdma.paths_up, "channel") + " up · " + bytes(rdma.memory_bytes) + " registered" + (rdma.peers.length ? "" : " · no peer with RDMA yet"));
  byId("rdma-peers").replaceChildren(...rdma.peers.map(rdmaRow));
}

// Texts for the reasons of the metric starling_transport_rdma_fallbacks_total.
const fallbacks = {
  not_supported: "this build has no RDMA", no_device: "no device has this host's address", device_full: "the device is full",
  memory: "the memory for RDMA is used up", not_allowed: "RDMA is not allowed for this peer", refused: "refused by the peer", peer: "closed by the peer",
  doubted: "invalid responses over RDMA", breach: "unexpected bytes arrived", stalled: "nothing arrived in time",
  connection: "the connection ended", device: "device error: see the log",
};

function rdmaRow(p) {
  const row = element("tr"), name = element("th"), id = element("code", p.id.slice(0, 12));
  name.scope = "row";
  id.title = p.id;
  name.append(id);
  const fallback = p.fallback ? dateTime(p.fallback_time) + ": " + (fallbacks[p.fallback] || p.fallback) : "none";
  const paths = p.paths_up ? count.format(p.paths_up) : p.connected ? "none: TLS" : "not connected";
  row.append(name, element("td", paths, p.paths_up ? "" : p.connected ? "bad" : "dim"), element("td", bytes(p.sent_bytes)),
    element("td", bytes(p.received_bytes)), element("td", fallback, p.paths_up || !p.connected ? "dim" : ""));
  return row;
}

// ---- The storage nodes that keep the state, or the ranges of one

const maxReplicas = 500; // rows

function showStorage(storage) {
  byId("storage").hidden = !storage;
  if (!storage) return;
  const line = ["height " + count.format(storage.durable) + " on disk, of " + count.format(storage.head), plural(storage.lag_blocks, "block") + " behind"];
  const rows = [];
  let left = 0;
  for (const range of storage.ranges) {
    for (const node of range.nodes || []) {
      if (rows.length < maxReplicas) rows.push(replicaRow(range, node)); else left++;
    }
  }
  if (left) line.push(count.format(left) + " more in status.json");
  if (storage.liars.length) line.push(plural(storage.liars.length, "invalid response"));
  setText(byId("storage-line"), line.join(" · "));
  setText(byId("storage-waiting"), storage.waiting);
  byId("ranges").replaceChildren(...rows);
}

function replicaRow(range, node) {
  const row = element("tr"), name = element("th", range.range);
  name.scope = "row";
  const who = element("td"), id = element("code", node.id.slice(0, 12));
  id.title = node.id;
  who.append(id, element("span", " " + node.address, "dim"));
  const silent = !node.connected && node.error;
  const height = (h) => h > 0 ? count.format(h) : "–";
  row.append(name, who, element("td", silent ? "silent: " + node.error : node.state, silent ? "bad" : ""), element("td", height(node.durable)),
    element("td", node.connected ? plural(node.lag_blocks, "block") : "–"), element("td", height(node.newest)));
  return row;
}

// standing shows whether this node is a validator, and whether it signs blocks.
function standing(v, early) {
  if (!v) return [["Validator", early ? undefined : "no"]];
  return [
    ["Validator", v.power > 0 ? "yes, power " + count.format(v.power) : "yes"],
    ["Signed block " + count.format(v.last_height), v.last_height > 0 ? (v.last_signed ? "yes" : "no") : undefined, v.last_signed ? "" : "bad"],
    ["Missed of the last " + count.format(v.blocks), v.blocks > 0 ? count.format(v.missed) : undefined, v.missed > 0 ? "bad" : ""],
  ];
}

function chainPeerRow(p) {
  const row = element("tr"), name = element("th"), id = element("code", p.id.slice(0, 12));
  name.scope = "row";
  id.title = p.id;
  name.append(id, element("span", " " + p.address, "dim"));
  row.append(name, element("td", p.moniker), element("td", duration(p.seconds)), element("td", p.outbound ? "this node" : "the peer"));
  return row;
}

// card shows the card that holds an element, or hides it.
function card(id, shown) { byId(id).closest(".card").hidden = !shown; }

function showCaches(caches) {
  const rate = (c) => c.hits + c.misses === 0 ? "–" : (100 * c.hits / (c.hits + c.misses)).toFixed(1) + " %";
  const rows = [
    ["Hit rate", rate],
    ["Hits", (c) => count.format(c.hits)],
    ["Misses", (c) => count.format(c.misses)],
    ["Misses a larger cache saves", (c) => count.format(c.ghost_hits)],
    ["Memory", (c) => bytes(c.bytes)],
    ["Memory limit", (c) => bytes(c.target_bytes)],
    ["On disk", (c) => bytes(c.disk_bytes)],
  ];
  const head = element("tr");
  head.append(element("td"), ...caches.map((c) => heading(c.zone, "col")));
  byId("caches").tHead.replaceChildren(head);
  byId("caches").tBodies[0].replaceChildren(...rows.map(([name, value]) => {
    const row = element("tr");
    row.append(heading(name, "row"), ...caches.map((c) => element("td", value(c))));
    return row;
  }));
}

function heading(text, scope) {
  const th = element("th", text);
  th.scope = scope;
  return th;
}

// ---- The join

let peers = new Map(); // by the index that cells use

function showJoin(join, phase) {
  byId("join").hidden = !join;
  if (!join) return;
  const over = join.phase === "done", going = phase === "joining";
  byId("join").classList.toggle("over", over && !going);
  const titles = {
    looking: "Joining: looking for peers and a snapshot", verifying: "Joining: verifying the data of an interrupted join",
    fetching: "Joining at height " + count.format(join.height), writing: "Joining: making the state durable",
    done: "Joined at height " + count.format(join.height) + " in " + duration(join.seconds),
  };
  setText(byId("join-title"), titles[join.phase] || join.phase);
  const bar = byId("join-bar");
  bar.hidden = over || join.chunks === 0;
  bar.max = Math.max(join.bytes || join.chunks, 1);
  bar.value = join.bytes ? join.bytes_done : join.chunks_done;

  const line = [];
  if (join.chunks) line.push(count.format(join.chunks_done) + " of " + count.format(join.chunks) + " chunks");
  if (join.bytes) line.push(bytes(join.bytes_done) + " of " + bytes(join.bytes));
  if (join.rate) line.push(bytes(join.rate) + "/s");
  if (join.seconds_left > 0) line.push(duration(join.seconds_left) + " left");
  setText(byId("join-line"), line.join(" · "));
  const more = [plural(join.connected, "peer"), count.format(join.banned) + " banned"];
  if (join.rejected) more.push(plural(join.rejected, "invalid response"));
  if (join.refetched) more.push(count.format(join.refetched) + " re-requested");
  if (join.reused_bytes) more.push(bytes(join.reused_bytes) + " already present");
  if (join.wasted_bytes) more.push(bytes(join.wasted_bytes) + " wasted");
  if (join.retargets) more.push(plural(join.retargets, "change") + " of snapshot");
  if (!over) more.push(duration(join.seconds) + " so far");
  setText(byId("join-more"), more.join(" · "));

  peers = new Map(join.peers.filter((p) => p.index > 0).map((p) => [p.index, p]));
  byId("peers").replaceChildren(...join.peers.flatMap(peerRows));
  wantMap(join.map_version);
}

// ---- Blocks fetched before CometBFT runs

function showCatchUp(c) {
  const going = c && c.state === "catch_up", over = c && c.state === "normal" && c.blocks > 0;
  byId("catch-up").hidden = !going && !over;
  if (!going && !over) return;
  byId("catch-up").classList.toggle("over", over);
  setText(byId("catch-up-title"), going ? "Catching up by blocks"
    : "Caught up to block " + count.format(c.height) + " in " + duration(c.seconds));
  const bar = byId("catch-up-bar"), first = c.height - c.blocks;
  bar.hidden = over;
  bar.max = Math.max(c.target - first, 1);
  bar.value = c.blocks;
  const line = [];
  if (going) {
    line.push("block " + count.format(c.height) + " of " + count.format(c.target), Math.round(c.blocks_per_second * 10) / 10 + " blocks/s", bytes(c.rate) + "/s");
    if (c.seconds_left > 0) line.push(duration(c.seconds_left) + " left");
  }
  setText(byId("catch-up-line"), line.join(" · "));
  const more = [plural(c.connected, "peer"), count.format(c.banned) + " banned", plural(c.blocks, "block") + " executed, " + bytes(c.bytes)];
  if (going) more.push(duration(c.seconds) + " so far");
  setText(byId("catch-up-more"), more.join(" · "));
}

const plural = (n, what) => count.format(n) + " " + what + (n === 1 ? "" : "s");

function peerRows(p) {
  const row = element("tr"), name = element("th");
  name.scope = "row";
  const swatch = element("span", undefined, "swatch");
  swatch.style.background = p.index > 0 ? peerColour(p.index) : "transparent";
  const id = element("code", p.id.slice(0, 12));
  id.title = p.id;
  name.append(swatch, id);
  if (p.address) name.append(element("span", " " + p.address, "dim"));
  const state = element("td", p.state, p.state === "banned" ? "bad" : "");
  row.append(name, state, element("td", p.rate ? bytes(p.rate) + "/s" : "–"), element("td", count.format(p.chunks)),
    element("td", bytes(p.bytes)), element("td", count.format(p.in_flight)), element("td", p.wasted_bytes ? bytes(p.wasted_bytes) : "–"));
  if (!p.reason) return [row];
  const why = element("tr"), reason = element("td", p.reason, "reason");
  reason.colSpan = 7;
  why.append(reason);
  return [row, why];
}

// ---- The map: see Map.encode in status.go

const states = ["waiting", "asked", "checking", "stored", "here", "partly"];
const labels = {
  waiting: "waiting", asked: "in flight", checking: "being verified", stored: "stored", here: "already present",
  partly: "partly stored", lied: "re-requested after an invalid response", fixed: "stored after an invalid response",
};
const order = ["waiting", "asked", "checking", "stored", "partly", "here", "lied", "fixed"];

let map = null; // {chunks, perCell, kinds: Uint8Array of indexes into order, peer: Uint16Array}
let drawn = null; // what is on the canvas: the geometry, and a colour for each cell
let mapVersion = -1, wanted = -1, fetching = false;

function wantMap(version) {
  wanted = version;
  if (!fetching && wanted !== mapVersion) fetchMap();
}

async function fetchMap() {
  fetching = true;
  try {
    const answer = await fetch("/chunks");
    if (!answer.ok) throw new Error(answer.statusText);
    decode(new DataView(await answer.arrayBuffer()));
    draw();
  } catch (error) {
    console.warn("cannot fetch the chunk map:", error);
  }
// One request at a time, at a limited rate; a slow browser sends fewer requests.
  setTimeout(() => {
    fetching = false;
    if (wanted !== mapVersion) fetchMap();
  }, 400);
}

function decode(view) {
  if (view.getUint8(0) !== 1) throw new Error("unknown format " + view.getUint8(0));
  mapVersion = Number(view.getBigUint64(1));
  const cells = Math.floor((view.byteLength - 25) / 3);
  map = { chunks: view.getUint32(17), perCell: view.getUint32(21), kinds: new Uint8Array(cells), peer: new Uint16Array(cells) };
  for (let i = 0; i < cells; i++) {
    const b = view.getUint8(25 + 3 * i), state = states[b & 0x7f] || "waiting";
    const there = state === "stored" || state === "here";
    const kind = b & 0x80 ? (there ? "fixed" : "lied") : state;
    map.kinds[i] = order.indexOf(kind);
    map.peer[i] = view.getUint16(26 + 3 * i);
  }
}

let palette = {}, peerLight = "50%";

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const kind of order) palette[kind] = style.getPropertyValue("--" + kind).trim();
  peerLight = style.getPropertyValue("--peer-light").trim();
}

// peerColour advances the hue by the golden angle, so that neighbours differ.
const peerColour = (index, share = 1) => "hsl(" + Math.round(index * 137.508) % 360 + " 65% " + peerLight + " / " + share + ")";

const byPeer = () => document.querySelector("input[name=colour]:checked").value === "peer";

function draw() {
  byId("map").hidden = !map || map.kinds.length === 0;
  if (!map || map.kinds.length === 0) { drawn = null; return; }
// willReadFrequently keeps the canvas off the graphics card, which could lose its content (contextrestored).
  const canvas = byId("cells"), n = map.kinds.length, width = byId("canvas-box").clientWidth, scale = window.devicePixelRatio || 1;
  const size = Math.min(20, Math.max(2, Math.floor(Math.sqrt(width * 420 / n))));
  const columns = Math.max(1, Math.floor(width / size)), rows = Math.ceil(n / columns);
  const context = canvas.getContext("2d", { willReadFrequently: true }), peerColours = byPeer();
  if (!drawn || drawn.n !== n || drawn.size !== size || drawn.columns !== columns || drawn.scale !== scale) {
    canvas.width = Math.round(columns * size * scale);
    canvas.height = Math.round(rows * size * scale);
    canvas.style.width = columns * size + "px";
    canvas.style.height = rows * size + "px";
    drawn = { n, size, columns, scale, colours: new Array(n) };
  }
  const inner = (size >= 4 ? size - 1 : size) * scale;
  const counts = new Array(order.length).fill(0);
  for (let i = 0; i < n; i++) {
    const kind = map.kinds[i];
    counts[kind]++;
    let colour = palette[order[kind]];
    if (peerColours && map.peer[i] > 0 && order[kind] !== "waiting" && order[kind] !== "lied") {
      colour = peerColour(map.peer[i], order[kind] === "asked" || order[kind] === "checking" ? 0.4 : 1);
    }
    if (drawn.colours[i] === colour) continue;
    drawn.colours[i] = colour;
    const x = (i % columns) * size * scale, y = Math.floor(i / columns) * size * scale;
    context.clearRect(x, y, inner, inner);
    context.fillStyle = colour;
    context.fillRect(x, y, inner, inner);
  }
  const unit = map.perCell === 1 ? "" : " cells";
  legend(counts, unit);
  setText(byId("map-note"), (map.perCell === 1 ? "Each cell is a chunk" : "Each cell is " + count.format(map.perCell) + " chunks") +
    ", in key order." + (peerColours ? " Requested chunks are pale." : ""));
  canvas.setAttribute("aria-label", "Chunk map: " + order.map((kind, k) => [counts[k], labels[kind]]).filter((c) => c[0] > 0)
    .map((c) => count.format(c[0]) + unit + " " + c[1]).join(", "));
}

function legend(counts, unit) {
  const ul = byId("legend");
  if (ul.children.length === 0) {
    for (const kind of order) {
      const item = element("li"), swatch = element("span", undefined, "swatch"), number = element("b");
      number.id = "count-" + kind;
      swatch.dataset.kind = kind;
      item.append(swatch, number, " " + labels[kind]);
      ul.append(item);
    }
  }
  order.forEach((kind, k) => {
    const number = byId("count-" + kind);
    setText(number, count.format(counts[k]) + unit);
    number.parentElement.hidden = counts[k] === 0 && kind !== "waiting" && kind !== "stored";
    number.parentElement.firstChild.style.background = palette[kind];
  });
}

function tip(event) {
  const box = byId("tip");
  if (!drawn || !map) return;
  const area = byId("cells").getBoundingClientRect();
  const x = Math.floor((event.clientX - area.left) / drawn.size), y = Math.floor((event.clientY - area.top) / drawn.size);
  const i = y * drawn.columns + x;
  if (x < 0 || y < 0 || x >= drawn.columns || i >= drawn.n) { box.hidden = true; return; }
  const first = i * map.perCell, last = Math.min(first + map.perCell, map.chunks) - 1;
  let text = (first === last ? "Chunk " + count.format(first) : "Chunks " + count.format(first) + " to " + count.format(last)) +
    ": " + labels[order[map.kinds[i]]];
  if (map.peer[i] > 0) {
    const peer = peers.get(map.peer[i]);
    text += peer ? ", peer " + peer.id.slice(0, 12) + (peer.rate ? " (" + bytes(peer.rate) + "/s)" : "") + (peer.reason ? ", banned" : "") :
      ", peer " + map.peer[i];
  }
  setText(box, text);
  box.hidden = false;
  const left = event.clientX - area.left + 12, room = byId("canvas-box").clientWidth - box.offsetWidth;
  box.style.left = Math.max(0, Math.min(left, room)) + "px";
  box.style.top = event.clientY - area.top + 18 + "px";
}

// ---- Updates

let heard = 0, source = null, timer = 0;

function news(text) {
  heard = Date.now();
  byId("stale").hidden = true;
  show(JSON.parse(text));
}

// listen subscribes to the node's status. If the node admits no further browser, or is down, the page polls it every two seconds.
function listen() {
  source = new EventSource("/events");
  source.onmessage = (event) => news(event.data);
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
    clearTimeout(timer);
    timer = setTimeout(poll, 2000);
  };
}

async function poll() {
  try {
    const answer = await fetch("/status.json");
    if (answer.ok) news(await answer.text());
  } catch (error) {
    console.warn("cannot fetch the status:", error);
  }
  timer = setTimeout(poll, 2000);
}

function repaint() {
  readPalette();
  drawn = null;
  draw();
}

readPalette();
listen();
setInterval(() => { byId("stale").hidden = heard > 0 && Date.now() - heard < 6000; }, 2000);
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
for (const radio of document.querySelectorAll("input[name=colour]")) radio.addEventListener("change", draw);
byId("cells").addEventListener("contextrestored", repaint);
byId("cells").addEventListener("pointermove", tip);
byId("cells").addEventListener("pointerdown", tip);
byId("cells").addEventListener("pointerleave", () => { byId("tip").hidden = true; });
