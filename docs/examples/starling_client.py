#!/usr/bin/env python3
"""A Starling client in one file: it writes keys, and reads them without trusting the node.

Only Python's standard library is used. It shows every step of the formats (docs/how-to/clients.md); it is an example to read and to
translate. Its ed25519 takes a time that depends on the secret key: sign with it on a machine of your own, never in a service.

    starling_client.py --node http://127.0.0.1:26657 put fruit/apple green --key ~/.starling/keys/alice.json
    starling_client.py --node http://127.0.0.1:26657 text fruit/apple green
    starling_client.py --node http://127.0.0.1:26657 get fruit/apple --trust-height 5 --trust-hash 3FA0…
"""
import argparse
import base64
import calendar
import hashlib
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request

TRUST_PERIOD = 7 * 24 * 3600  # seconds: shorter than the time for which validators can be punished
CLOCK_DRIFT = 10  # seconds that a header may be ahead of our clock
PATIENCE = 60  # seconds that we wait for a block


class Refused(Exception):
    """The node refused a request, or its answer does not match the proof."""


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


# --- RPC: JSON-RPC 2.0 over HTTP. Bytes travel as base64 or hex, 64-bit numbers as strings. ---

class Node:
    def __init__(self, url):
        self.url = url

    def call(self, method, **params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as e:  # errors come with status 500 and the same JSON
            answer = json.load(e)
        if answer.get("error"):
            raise Refused(f"{method}: {answer['error'].get('message')}: {answer['error'].get('data')}")
        return answer["result"]

    def wait(self, method, **params):
        """Repeats call until the node has the requested data."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.call(method, **params)
            except Refused as e:  # only the text distinguishes "not yet"
                if not re.search("must be less than or equal to|not found", str(e)) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


# --- Protobuf, as far as needed. Defaults (0, empty) are left out, except where `always` says so. ---

def uvarint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def number(field, n):
    return uvarint(field << 3) + uvarint(n % (1 << 64)) if n else b""


def fixed64(field, n):
    return uvarint(field << 3 | 1) + n.to_bytes(8, "little", signed=True) if n else b""


def data(field, b, always=False):
    return uvarint(field << 3 | 2) + uvarint(len(b)) + b if b or always else b""


def message(b):
    """Decodes a message of numbers and byte strings: {field: [values]}."""
    fields, i = {}, 0

    def read():
        nonlocal i
        n = shift = 0
        while True:
            if i >= len(b) or shift > 63:
                raise Refused("a truncated or malformed proof")
            byte, i = b[i], i + 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    while i < len(b):
        tag = read()
        value = read()
        if tag & 7 == 2:
            length, value = value, b[i:i + value]
            i += length
            if len(value) != length:
                raise Refused("a truncated proof")
        elif tag & 7 != 0:
            raise Refused("a malformed proof")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


# --- ed25519 (RFC 8032, section 5.1), not in constant time. ---

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(n, p):
    q = (0, 1, 1, 0)
    while n:
        if n & 1:
            q = add(q, p)
        p, n = add(p, p), n >> 1
    return q


def compress(p):
    inverse = pow(p[2], P - 2, P)
    x, y = p[0] * inverse % P, p[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decompress(b):
    """The point, or None: stricter than ZIP-215, which also takes encodings that are not canonical; no honest signer makes those."""
    y = int.from_bytes(b, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if len(b) != 32 or y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def expand(seed):
    h = hashlib.sha512(seed).digest()
    return int.from_bytes(h[:32], "little") & (1 << 254) - 8 | 1 << 254, h[32:]


def hash_mod(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % L


def public_key(seed):
    return compress(multiply(expand(seed)[0], BASE))


def sign(seed, text):
    a, prefix = expand(seed)
    r = hash_mod(prefix, text)
    big_r = compress(multiply(r, BASE))
    s = (r + hash_mod(big_r, public_key(seed), text) * a) % L
    return big_r + s.to_bytes(32, "little")


def verify(public, text, signature):
    a, r, s = decompress(public), decompress(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or len(signature) != 64 or s >= L:
        return False
    left = multiply(8 * s, BASE)  # with the cofactor 8, as ZIP-215 says
    right = multiply(8, add(r, multiply(hash_mod(signature[:32], public, text), a)))
    return compress(left) == compress(right)


# --- Transactions (docs/spec/transactions.md). ---

def signed_transaction(seed, chain_id, nonce, operations):
    body = data(1, public_key(seed)) + number(2, nonce) + b"".join(data(3, op) for op in operations)
    chain = chain_id.encode()
    signature = sign(seed, b"starling/tx/v1\0" + uvarint(len(chain)) + chain + body)
    return b"\0" + data(1, body) + data(2, signature)


def put(key, value):
    return data(1, data(1, key) + data(2, value))


def next_nonce(node, account):
    answer = node.call("abci_query", path="/nonce", data=account.hex())["response"]
    if answer.get("code"):
        raise Refused(f"nonce: {answer.get('log')}")
    return int.from_bytes(base64.b64decode(answer["value"]), "big")


def submit(node, raw):
    """Sends a transaction and waits until it is in a block. Returns the height."""
    answer = node.call("broadcast_tx_sync", tx=base64.b64encode(raw).decode())
    if answer["code"]:
        raise Refused(f"not accepted, code {answer['code']}: {answer['log']}")
    result = node.wait("tx", hash=base64.b64encode(sha256(raw)).decode())
    if result["tx_result"].get("code"):
        raise Refused(f"failed in block {result['height']}, code {result['tx_result']['code']}: {result['tx_result'].get('log')}")
    return int(result["height"])


# --- Headers, validators and commits (CometBFT's data structures). ---

def merkle(leaves):
    """The root of an RFC 6962 tree."""
    if not leaves:
        return sha256()
    if len(leaves) == 1:
        return sha256(b"\0", leaves[0])
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\1", merkle(leaves[:split]), merkle(leaves[split:]))


def seconds_nanos(text):
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", text)
    if not match:
        raise Refused(f"no time: {text}")
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")), int((match[2] or "").ljust(9, "0"))


def timestamp(text):
    seconds, nanos = seconds_nanos(text)
    return number(1, seconds) + number(2, nanos)


def parts(block_id):
    return number(1, block_id["parts"]["total"]) + data(2, bytes.fromhex(block_id["parts"]["hash"]))


def block_id(b):
    return data(1, bytes.fromhex(b["hash"])) + data(2, parts(b), always=True)


def header_hash(h):
    version = number(1, int(h["version"]["block"])) + number(2, int(h["version"].get("app", 0)))
    hashes = ["last_commit_hash", "data_hash", "validators_hash", "next_validators_hash", "consensus_hash", "app_hash",
              "last_results_hash", "evidence_hash", "proposer_address"]
    return merkle([version, data(1, h["chain_id"].encode()), number(1, int(h["height"])), timestamp(h["time"]),
                   block_id(h["last_block_id"])] + [data(1, bytes.fromhex(h[name])) for name in hashes])


class Block:
    """A header, the commit that signs it and the validators of its height, which belong together. They are not verified yet."""

    def __init__(self, node, height):
        signed = node.wait("commit", height=str(height))["signed_header"]
        self.header, self.commit = signed["header"], signed["commit"]
        self.height, self.hash = int(self.header["height"]), header_hash(self.header)
        if self.height != height or int(self.commit["height"]) != height or self.commit["block_id"]["hash"] != self.hash.hex().upper():
            raise Refused(f"block {height}: the commit is of another header")
        self.validators, total = [], 1  # of (public key, power)
        while len(self.validators) < total:
            page = node.call("validators", height=str(height), page=str(len(self.validators) // 100 + 1), per_page="100")
            total = int(page["total"])
            if not page["validators"] or total > 10000:
                raise Refused(f"block {height}: no list of validators")
            self.validators += [(base64.b64decode(v["pub_key"]["value"]), int(v["voting_power"])) for v in page["validators"]]
        set_hash = merkle([data(1, data(1, key)) + number(2, power) for key, power in self.validators])
        if set_hash.hex().upper() != self.header["validators_hash"] or any(power <= 0 for _, power in self.validators):
            raise Refused(f"block {height}: the validators are not those of the header")

    def signed_power(self, validators):
        """The power of the validators that signed this block, and of all of them."""
        powers, signed = dict(validators), 0
        keys = {sha256(key)[:20]: key for key, _ in self.validators}
        for s in self.commit["signatures"]:
            key = keys.pop(bytes.fromhex(s["validator_address"]), None)  # pop: each validator counts once
            if s["block_id_flag"] != 2 or key not in powers:  # 2: it voted for this block
                continue
            c = self.commit
            canonical_id = data(1, self.hash) + data(2, parts(c["block_id"]), always=True)
            vote = (number(1, 2) + fixed64(2, self.height) + fixed64(3, c["round"]) + data(4, canonical_id)
                    + data(5, timestamp(s["timestamp"]), always=True) + data(6, self.header["chain_id"].encode()))
            if not verify(key, uvarint(len(vote)) + vote, base64.b64decode(s["signature"])):
                raise Refused(f"block {self.height}: a wrong signature")
            signed += powers[key]
        return signed, sum(powers.values())


class LightClient:
    """Headers that follow from one trusted header by their signatures (CometBFT's light client, skipping verification)."""

    def __init__(self, node, height, trusted_hash):
        self.node, self.trusted = node, Block(node, height)
        if self.trusted.hash != trusted_hash:
            raise Refused(f"header {height} has hash {self.trusted.hash.hex().upper()}, another one is trusted")

    def header(self, height):
        if height < self.trusted.height:
            raise Refused(f"height {height} is below the trusted header, {self.trusted.height}: trust an older one")
        wanted = [height]
        while self.trusted.height < height:
            block = Block(self.node, wanted[-1])
            if self.follows(block):
                self.trusted = block
                wanted.pop()
            else:  # too few known validators signed it: verify a header halfway first
                wanted.append((self.trusted.height + block.height) // 2)
        return self.trusted.header

    def follows(self, block):
        old, new = self.trusted.header, block.header
        if new["chain_id"] != old["chain_id"] or seconds_nanos(new["time"]) <= seconds_nanos(old["time"]):
            raise Refused(f"block {block.height}: another chain, or older than the trusted header")
        if seconds_nanos(old["time"])[0] + TRUST_PERIOD < time.time():
            raise Refused(f"the trusted header {self.trusted.height} is too old: trust a newer one")
        if seconds_nanos(new["time"])[0] > time.time() + CLOCK_DRIFT:
            raise Refused(f"block {block.height} is of the future: is our clock right?")
        if block.height == self.trusted.height + 1:
            if new["validators_hash"] != old["next_validators_hash"]:
                raise Refused(f"block {block.height}: other validators than the header before names")
        else:
            signed, total = block.signed_power(self.trusted.validators)
            if 3 * signed <= total:
                return False
        signed, total = block.signed_power(block.validators)
        if 3 * signed <= 2 * total:
            raise Refused(f"block {block.height}: {signed} of {total} of the voting power signed it, no majority")
        return True


# --- Proofs (docs/spec/proofs.md). ---

STATE_LEAF = bytes.fromhex("0801100118012a0100")  # ICS-23 LeafOp: SHA256 of key and of value, no lengths, prefix 00
MAP_LEAF = bytes.fromhex("0801180120012a0100")  # SHA256 of the value, lengths before both, prefix 00


def existence(b):
    """Reads an ExistenceProof of the state tree: key, value, root and the turns from the root down to the leaf (0 left, 1 right)."""
    m = message(b)
    key, value = m.get(1, [b""])[0], m.get(2, [b""])[0]
    node, turns, again = sha256(b"\0", sha256(key), sha256(value)), [], data(1, key) + data(2, value) + data(3, STATE_LEAF)
    for step in m.get(4, []):
        op = message(step)
        prefix, suffix = op.get(2, [b""])[0], op.get(3, [b""])[0]
        if prefix[:1] != b"\1" or (len(prefix), len(suffix)) not in ((51, 32), (83, 0)):
            raise Refused("proof: no inner node of a state tree")
        turns.append(0 if suffix else 1)
        node = sha256(prefix, node, suffix)
        again += data(4, number(1, 1) + data(2, prefix) + data(3, suffix))
    if again != b or not key or not value or len(turns) > 128:
        raise Refused("proof: not in its only form")
    return key, value, node, turns[::-1]


def absent(key, b, root):
    """Checks a NonExistenceProof: its two neighbours are adjacent leaves around key (or one is the first or last leaf)."""
    m = message(b)
    left, right = (existence(m[field][0]) if field in m else None for field in (2, 3))
    again = data(1, key) + b"".join(data(field, m[field][0]) for field in (2, 3) if field in m)
    if again != b or not (left or right) or any(p and p[2] != root for p in (left, right)):
        raise Refused("proof of absence: of another key or state")
    if left and left[0] >= key or right and right[0] <= key:
        raise Refused("proof of absence: the neighbours are not around the key")
    lefts, rights = left[3] if left else [], right[3] if right else []
    if left and right:
        fork = next((i for i, (a, c) in enumerate(zip(lefts, rights)) if a != c), None)
        if fork is None or lefts[fork] != 0:
            raise Refused("proof of absence: the neighbours are not adjacent")
        lefts, rights = lefts[fork + 1:], rights[fork + 1:]
    if not all(lefts) or any(rights):
        raise Refused("proof of absence: there are leaves between")


def check_answer(key, value, operators, app_hash):
    """Checks that the state with this app hash has value under key; value b"": that it has no such key."""
    if [o["type"] for o in operators] != ["ics23:starling", "ics23:simple"]:
        raise Refused("no proof of the kind that was asked for")
    state, simple = (base64.b64decode(o["data"]) for o in operators)
    # The second operator: the leaf "state" of a map of two leaves, "chunks" and "state", holds the state's root.
    root, chunks = simple[11:43], simple[-32:]
    leaf = data(1, b"state") + data(2, root) + data(3, MAP_LEAF) + data(4, number(1, 1) + data(2, b"\1" + chunks))
    if simple != data(1, leaf) or sha256(b"\1", chunks, sha256(b"\0\5state\x20", sha256(root))) != app_hash:
        raise Refused("the state's root is not in the app hash")
    if not state and not value and root == sha256():
        return  # the empty tree has no key
    m = message(state)
    if value:
        if state != data(1, m.get(1, [b""])[0]) or existence(m[1][0])[:3] != (key, value, root):
            raise Refused("the proof is of another key, value or state")
    elif state != data(2, m.get(2, [b""])[0]):
        raise Refused("no proof of absence")
    else:
        absent(key, m[2][0], root)


def get(node, light, key):
    """The value of key after a recent block, and the block's height; None where there is no such key. Both are proved."""
    answer = node.call("abci_query", path="/key", data=key.hex(), prove=True)["response"]
    if answer.get("code"):
        raise Refused(f"query: {answer.get('log')}")
    height, value = int(answer["height"]), base64.b64decode(answer.get("value") or "")
    header = light.header(height + 1)  # the header after a block has the hash of its state
    check_answer(key, value, (answer.get("proofOps") or {}).get("ops") or [], bytes.fromhex(header["app_hash"]))
    return value or None, height


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", default="http://127.0.0.1:26657", help="RPC address")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("put", help="write a key, signed")
    writing.add_argument("--key", dest="file", required=True, help="file of a key, as `starlingd keys add` makes it")
    text = commands.add_parser("text", help="write a key without a signature (if genesis says open)")
    reading = commands.add_parser("get", help="read a key, with a proof")
    reading.add_argument("--trust-height", type=int, required=True)
    reading.add_argument("--trust-hash", type=bytes.fromhex, required=True, help="hash of that header, from a source you trust")
    for command in (writing, text, reading):
        command.add_argument("name")
    for command in (writing, text):
        command.add_argument("value")
    o = parser.parse_args()
    node, key = Node(o.node), os.fsencode(o.name)
    if o.command == "get":
        value, height = get(node, LightClient(node, o.trust_height, o.trust_hash), key)
        print(f"height {height}: " + ("no such key" if value is None else value.decode(errors="backslashreplace")))
        return
    value = os.fsencode(o.value)
    raw = key + b"=" + value
    if o.command == "put":
        with open(os.path.expanduser(o.file), encoding="ascii") as f:
            signer = json.load(f)
        if "seed" not in signer:
            sys.exit("the key is encrypted: `starlingd keys passphrase NAME --remove` in a copy of the folder decrypts it")
        seed = bytes.fromhex(signer["seed"])
        chain_id = node.call("status")["node_info"]["network"]
        raw = signed_transaction(seed, chain_id, next_nonce(node, public_key(seed)), [put(key, value)])
    print(f"height {submit(node, raw)}: written")


if __name__ == "__main__":
    try:
        main()
    except (Refused, OSError) as refused:
        sys.exit(f"refused: {refused}")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as malformed:
        sys.exit(f"refused: an answer of another form: {malformed!r}")
