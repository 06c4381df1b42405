package config

import (
	"errors"
	"os"
	"text/template"
)

// appTemplate is app.toml as init writes it.
var appTemplate = template.Must(template.New("app.toml").Parse(`# Settings of Starling's application. Those of CometBFT are in config.toml beside this file.
# Each can be overridden by a flag (--state.keep_recent) or an environment variable (STARLINGD_STATE_KEEP_RECENT).

# The node commits this block, writes everything to disk and stops with exit status 0, so that all nodes can stop at the same state. It
# does not start again until this is higher, or 0. 0: the node never stops by itself.
halt_height = {{ .HaltHeight }}

[state]

# Number of recent states that can be queried (at their heights, with proofs). At least 1: the last one. After a start, those from before it
# come back beside the node's work, the newest first, of what data/undo has; the log says when (not with ` + "`starlingd abci`" + `, nor if sharded).
keep_recent = {{ .State.KeepRecent }}

# Memory, in bytes, that these states may take beyond that of the last one: where blocks change much, fewer states are kept, at least the
# last one (` + "`starlingd status`" + ` shows which). Snapshots are not counted here: each takes at most as much as the whole state once more. 0: no limit.
keep_recent_bytes = {{ .State.KeepRecentBytes }}

# For watchers (` + "`starlingd watch`" + `): of how many of the last blocks it is kept what they have changed, in data/events; 0 keeps none, and
# this node answers no watcher. A watcher continues from any of these heights.
keep_events = {{ .State.KeepEvents }}

# Bytes that these events may take: where blocks change much, those of fewer blocks are kept. On disk they are compressed.
keep_events_bytes = {{ .State.KeepEventsBytes }}

# Number of recent blocks that CometBFT keeps; 0 keeps all. Blocks that a served snapshot needs are kept in any case.
# A node that is further behind than the blocks of all others reach can only return by state sync.
retain_blocks = {{ .State.RetainBlocks }}

# true: an index by hash finds the values of keys that are in memory several times as fast, for transactions and for queries without a
# proof. It takes about 22 bytes of memory for each of these keys, and makes blocks a little slower to commit. No result depends on it.
index = {{ .State.Index }}

# "local": this node has the whole state. "sharded": storage nodes have it, and this node has what was used lately; it cannot change once
# the node has a state. The settings below are of "sharded" only.
mode = "{{ .State.Mode }}"

# File, relative to the home folder, that says which storage nodes keep which keys (` + "`starlingd storage ranges`" + ` writes it).
storage_nodes = "{{ .State.StorageNodes }}"

# The tree's nodes with fewer than retain_depth others above them stay in memory, about 100 bytes each: 12 is 4,096 ways, 0 the root alone.
# What is below them and was changed or fetched stays for window blocks.
retain_depth = {{ .State.RetainDepth }}
window = {{ .State.Window }}

# A block waits while some range has fewer than min_acks storage nodes that have everything on disk but the last max_lag_blocks blocks, or
# max_lag_bytes of their changes. A storage node that is further behind has to fetch its range anew. Stay well below what storage nodes
# answer (storage_node.serve_heights): otherwise a range that comes back can have no height in common with the others.
min_acks = {{ .State.MinAcks }}
max_lag_blocks = {{ .State.MaxLagBlocks }}
max_lag_bytes = {{ .State.MaxLagBytes }}

# A proposed block for which parts of the state do not come within this time is rejected; each further proposal for the same height may
# take this much longer.
witness_timeout = "{{ .State.WitnessTimeout }}"

[snapshots]

# Number of snapshots, the newest ones, that are offered to joining nodes; 0 offers none. One that is being fetched is kept a few minutes longer.
# A snapshot is a pinned version of the state. It costs memory for what has changed since, and disk space (data/snapshots) for the files
# that the state has replaced since, so that it survives a restart. The interval is in the genesis file (snapshot_interval).
keep = {{ .Snapshots.Keep }}

[storage]

# Memory, in bytes, for caches of what is on disk: blocks and, unless all of it is in memory, the state. The one of the two that gains
# more gets more.
memory_bytes = {{ .Storage.MemoryBytes }}

# true: the whole state is in memory (about 280 bytes per key, plus keys and values). false: for a state larger than memory; what was not
# used recently is read from disk when it is needed: verified for blocks, proofs and ranges, else trusting the disk's checksums. A few
# bytes per key stay in memory.
state_in_memory = {{ .Storage.StateInMemory }}

# The state is written to disk after the blocks, many blocks at a time: when this many blocks wait, or this many bytes of changes, or one
# block has waited this long. What a crash loses is executed again from the blocks, which are on disk at once.
flush_blocks = {{ .Storage.FlushBlocks }}
flush_bytes = {{ .Storage.FlushBytes }}
flush_interval = "{{ .Storage.FlushInterval }}"

# Maximum backlog of the flusher, in blocks and in bytes of changes. Blocks wait for the disk when it is reached.
max_lag_blocks = {{ .Storage.MaxLagBlocks }}
max_lag_bytes = {{ .Storage.MaxLagBytes }}

# With state_in_memory = false, queries and checks trust the checksums of what they read from disk, and much of a state is seldom read. So all
# of it is read and verified in the background, again and again: this many bytes of keys and values per second, 1 GB in about an hour, for
# about 1 % of a core. Damage ends the node with exit status 6. 0: only what blocks and proofs need is verified.
scrub_rate = {{ .Storage.ScrubRate }}

# The node stops, with exit status 5, when the disk of its data has less free space than this, and does not start before there is
# more: this much is needed to close all files cleanly. 0: it does not check, and a full disk ends it at any point.
min_free_bytes = {{ .Storage.MinFreeBytes }}

[storage_node]

# Of a storage node only (` + "`starlingd storage start`" + `). File, relative to the home folder, that says which storage nodes keep which keys.
ranges = "{{ .StorageNode.Ranges }}"

# Of how many of the last heights it answers, and the memory, in bytes, for what only older ones of them have. Snapshots, of which
# joining nodes fetch chunks, may take as much again.
serve_heights = {{ .StorageNode.ServeHeights }}
serve_bytes = {{ .StorageNode.ServeBytes }}

# Each range is stored every interval blocks, and the last keep of these states stay on disk with all changes since.
interval = {{ .StorageNode.Interval }}
keep = {{ .StorageNode.Keep }}

# IDs of the nodes that may send changes, comma-separated; "": any node of the chain. False ones are found in any case.
senders = "{{ .StorageNode.Senders }}"

[transport]

# Address at which joining nodes get state and headers from this one: "auto" is that of p2p.laddr with the port + 10, "" serves nobody.
# Connections are authenticated by the node keys, like those of p2p, and belong behind the same firewall rules.
laddr = "{{ .Transport.ListenAddress }}"

# Between validators that are near each other: proposals and parts of blocks go over the transport instead of p2p, whose rate is limited
# ([p2p] send_rate, recv_rate of config.toml), to peers that do the same. "off"; "rdma": only to peers with a path by RDMA (rdma, below);
# "all": over any connection. What the relay does not deliver within 100 ms goes by p2p. Votes and transactions always do.
relay = "{{ .Transport.Relay }}"

# Limit of connections, and of those from one address (a /64 of IPv6). If all are taken, one of the network that has most, or one that
# asks nothing, makes room for a newcomer, but never one of a peer that is named in join.peers or in [p2p] of config.toml
# (persistent_peers, unconditional_peer_ids, private_peer_ids).
max_peers = {{ .Transport.MaxPeers }}
max_peers_per_host = {{ .Transport.MaxPeersPerHost }}

# Bytes per second that are sent to all peers together, and to each address (a /64 of IPv6) whatever peers are there; 0: no limit. The
# first 128 KiB or more are sent at once. Addresses take turns.
send_rate = {{ .Transport.SendRate }}
send_rate_per_peer = {{ .Transport.SendRatePerPeer }}

# Answers past TLS, by RDMA (RoCE v2 or InfiniBand), where both ends have a device and declare each other; else they come over TLS. "off",
# "auto", or "required": the node does not start without a device. It needs the program starlingd-rdma; ` + "`starlingd rdma check`" + ` says what lacks.
rdma = "{{ .Transport.RDMA }}"

# Who may have a path: node IDs, and networks such as "10.7.0.0/24", both comma-separated. RDMA neither authenticates nor encrypts: whoever is
# in the fabric can damage what comes by it (which is found, and fetched again over TLS) and read it. Name trusted fabrics only.
rdma_peers = "{{ .Transport.RDMAPeers }}"
rdma_fabric = "{{ .Transport.RDMAFabric }}"

# Limit of the memory that is registered, and so locked, for all paths, in bytes: 34 MiB for each peer that is dialled, 4 MiB for each that dials.
rdma_memory = {{ .Transport.RDMAMemory }}

[join]

# With [statesync] enable in config.toml, a node without state joins over the transports of many peers at once. It trusts nothing but the
# header that trust_height and trust_hash name there; rpc_servers are not needed. false: CometBFT's own state sync, which needs them.
fast = {{ .Join.Fast }}

# Transports to begin with, as id@host:port or host:port, comma-separated, in addition to those of p2p.persistent_peers and p2p.seeds
# (port + 10).
peers = "{{ .Join.Peers }}"

# Memory for chunks that are in flight or being verified, in bytes.
memory_bytes = {{ .Join.MemoryBytes }}

# After this time without a transport that answers, or five minutes in which nobody has a snapshot that can be proved, CometBFT's own state
# sync is tried if statesync.rpc_servers are given. Otherwise the node stops without a transport, and the error lists what it could not
# reach; without a snapshot it goes on looking for one.
reach_timeout = "{{ .Join.ReachTimeout }}"

# With [statesync] enable, a node that was offline for more blocks than this fetches what differs of the state instead of executing the
# blocks, which are then missing from its store. 0: never.
catch_up_blocks = {{ .Join.CatchUpBlocks }}

# A node whose last block is more than five minutes old, or that has just joined, fetches the blocks since then over the transports of several
# peers and executes them; CometBFT starts, and RPC answers, when less than two blocks are missing. false: CometBFT's block sync fetches them.
blocks = {{ .Join.Blocks }}

# Number of headers before the snapshot that are fetched with the state, at most until evidence about them has expired. A block with
# evidence about a validator's misbehaviour at a height whose header is missing stops the node (exit status 8), and the next start asks for it.
# 1000 headers are about 2 MB and take less than a second; 0: none.
evidence_headers = {{ .Join.EvidenceHeaders }}

[status]

# Address of a web page that shows what the node does, and each chunk while it joins; also /livez and /readyz, and /status.json for
# programs. For example "127.0.0.1:26680"; "": none. It shows nothing secret, changes nothing, and needs no RPC.
laddr = "{{ .Status.ListenAddress }}"

# true: laddr may be an address that other machines can reach. Whoever reaches it then sees the page.
public = {{ .Status.Public }}

# Names by which browsers address this node, comma-separated. Requests for any other name are refused, so that a web site whose own name
# points here cannot read the page; localhost and IP addresses are always accepted.
hosts = "{{ .Status.Hosts }}"
`))

func WriteApp(path string, c App) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(appTemplate.Execute(file, c), file.Close())
}
