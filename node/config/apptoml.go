package config

import (
	"errors"
	"os"
	"text/template"
)

// appTemplate is the app.toml that init writes.
var appTemplate = template.Must(template.New("app.toml").Parse(`# Settings of Starling's application. CometBFT's are in config.toml in the same folder.
# A flag (--state.pruning_keep_recent) or an environment variable (STARLINGD_STATE_PRUNING_KEEP_RECENT) overrides each of them.

# The node commits this block, writes everything to disk and exits with status 0, so that all nodes can stop at the same state. It does not
# start again until this is higher, or 0. 0: never.
halt_height = {{ .HaltHeight }}

# In a network with a sharded state, a validator and a storage node start only with this much memory, in bytes: the least of GOMEMLIMIT, the
# control group's limit, and the machine's memory. 0: the sum of the node's budgets. Another number replaces it: 1 is no check, and the node may
# then run out of memory.
min_memory_bytes = {{ .MinMemoryBytes }}

[state]

# Number of recent states that can be queried (at their heights, with proofs). At least 1: the latest. After a restart only the latest state
# can be queried; each new block adds one.
pruning_keep_recent = {{ .State.KeepRecent }}

# Memory limit, in bytes, for these states beyond the latest one. If blocks change much, fewer states are kept, but always the latest
# (` + "`starlingd status`" + ` shows which). Snapshots do not count here: each takes at most as much memory as the whole state. 0: no limit.
pruning_keep_recent_bytes = {{ .State.KeepRecentBytes }}

# For watchers (` + "`starlingd watch`" + `): number of recent blocks whose changes are kept, in data/events. A watcher can resume from any of
# these heights. 0: none are kept, and this node serves no watchers.
keep_events = {{ .State.KeepEvents }}

# Limit for these events, in bytes before compression. If blocks change much, fewer blocks are kept.
keep_events_bytes = {{ .State.KeepEventsBytes }}

# Number of recent blocks that CometBFT keeps; 0: all. Blocks that a served snapshot needs are always kept.
# A node that is further behind than the oldest block of every peer can return only by state sync.
min_retain_blocks = {{ .State.RetainBlocks }}

# true: a hash index finds the values of keys in memory several times as fast, for transactions and for queries without a proof. It takes
# about 22 bytes of memory per key, and makes commits a little slower. It changes no result.
hash_index = {{ .State.Index }}

# "local": this node holds the full state. "sharded": storage nodes hold it, and this node holds only what it used recently. The mode cannot
# change once the node has a state. All settings below, to the end of this section, apply to "sharded" only.
mode = "{{ .State.Mode }}"

# File, relative to the home folder, that lists the key ranges and their storage nodes (` + "`starlingd storage ranges`" + ` writes it).
storage_nodes = "{{ .State.StorageNodes }}"

# Tree nodes at a depth below retain_depth stay in memory, about 100 bytes each: 12 keeps 4,096 paths, 0 only the root.
# Deeper nodes stay for retain_window_blocks blocks after they were changed or fetched, and those of transactions in the mempool longer.
retain_depth = {{ .State.RetainDepth }}
retain_window_blocks = {{ .State.Window }}

# A block waits while fewer than min_acks storage nodes of a range are up to date. A storage node is up to date if it lags by at most
# max_lag_blocks blocks and max_lag_bytes of changes. One that lags further must fetch its range again. Keep both well below
# storage_node.serve_heights: otherwise a range that comes back may have no height in common with the others. Every range needs
# min_acks replicas. With min_acks = 1, one lost disk can lose a range's state: for demonstrations only.
min_acks = {{ .State.MinAcks }}
max_lag_blocks = {{ .State.MaxLagBlocks }}
max_lag_bytes = {{ .State.MaxLagBytes }}

# Bytes of changes, of all ranges together, that stay in memory for storage nodes that come back, although all storage nodes that are up to
# date have them. The oldest blocks go first. A storage node that comes back later fetches what has changed from another one.
keep_updates_bytes = {{ .State.KeepUpdatesBytes }}

# A proposed block is rejected if storage nodes do not deliver the state it needs within this time. Each further proposal for the same
# height may take this much longer.
witness_timeout = "{{ .State.WitnessTimeout }}"

[snapshots]

# Number of recent snapshots offered to joining nodes; 0: none. A snapshot that a node is fetching is kept a few minutes longer.
# A snapshot is a reference to a version of the state. It costs memory for what changed since, and disk space (data/snapshots) for files that
# the state replaced since, so that it survives a restart. The interval is in the genesis file (snapshot_interval).
keep_recent = {{ .Snapshots.Keep }}

# Limit, in bytes, for what all snapshots keep in memory, and as much for what they keep on disk. The oldest snapshot is removed first, even if
# a node is fetching it; the newest always stays. 0: as much as the keys and values of the state, at least 256 MiB.
# In a storage node, the state is that of its ranges, and the limit for memory is storage_node.serve_bytes.
max_bytes = {{ .Snapshots.MaxBytes }}

[disk]

# Memory limit, in bytes, for caches of blocks and, unless the whole state is in memory, of the state. The cache that gains more from memory
# gets more of it. In a storage node, limit for the pages and trees of all ranges together, in addition to serve_bytes.
cache_bytes = {{ .Disk.CacheBytes }}

# true: the whole state is in memory (about 280 bytes per key, plus keys and values). A start reads a few bytes per key, and the rest while
# blocks are made: until then, and with false, data not used recently are read from disk on demand. false: for a state larger than memory.
# Blocks, proofs and ranges verify what they read from disk; other reads trust the disk's checksums.
state_in_memory = {{ .Disk.StateInMemory }}

# The state is flushed to disk in the background, many blocks at a time: when this many blocks or bytes of changes are waiting, or when a
# block has waited this long. After a crash the node replays the missing blocks: every block is on disk before it is executed.
flush_blocks = {{ .Disk.FlushBlocks }}
flush_bytes = {{ .Disk.FlushBytes }}
flush_interval = "{{ .Disk.FlushInterval }}"

# Maximum backlog of the flusher, in blocks and in bytes of changes. New blocks wait when the backlog reaches either.
max_backlog_blocks = {{ .Disk.MaxBacklogBlocks }}
max_backlog_bytes = {{ .Disk.MaxBacklogBytes }}

# With state_in_memory = false, a background scrub reads and verifies the whole state continuously, at this many bytes of keys and values
# per second: 256 KiB/s covers 1 GB in about an hour, for about 1 % of a core. Damage stops the node with exit status 6. 0: no scrub, so
# that damage is found only where data are read.
scrub_rate = {{ .Disk.ScrubRate }}

# The node stops with exit status 5 when its disk has less free space than this, and does not start until there is more. It needs this much
# to close all files cleanly. 0: the node does not check, and a full disk can stop it at any point.
min_free_bytes = {{ .Disk.MinFreeBytes }}

[storage_node]

# For storage nodes only (` + "`starlingd storage start`" + `). File, relative to the home folder, that lists the key ranges and their storage nodes.
ranges = "{{ .StorageNode.Ranges }}"

# Number of recent heights served, and the memory limit, in bytes, in equal parts for all ranges, for what that takes: data that only older heights need, and
# changes that are not written to the ranges yet. Snapshots served to joining nodes may take as much again.
serve_heights = {{ .StorageNode.ServeHeights }}
serve_bytes = {{ .StorageNode.ServeBytes }}

# IDs of the nodes that may send updates, comma-separated; "": any node of the chain. Updates of nodes that join.peers, or validators in the map of
# the ranges, names have priority. Invalid updates are always detected.
senders = "{{ .StorageNode.Senders }}"

[transport]

# Address that serves state and headers to joining nodes: "auto" is that of p2p.laddr with port + 10, "" serves none.
# Node keys authenticate connections, as for p2p. Use the same firewall rules.
laddr = "{{ .Transport.ListenAddress }}"

# Sends proposals and block parts over the transport instead of p2p, whose rate is limited ([p2p] send_rate and recv_rate in config.toml), to
# peers that do the same. For validators that are near each other. "off"; "rdma": only over RDMA channels (see rdma); "all": over any connection.
# Anything not delivered within 100 ms goes over p2p. Votes and transactions always do.
relay = "{{ .Transport.Relay }}"

# Connection limits: in total, and per address (a /64 of IPv6). If all slots are taken, an idle connection or one from the network with the
# most connections makes room, but never a peer named in join.peers or in [p2p] of config.toml (persistent_peers,
# unconditional_peer_ids, private_peer_ids).
max_peers = {{ .Transport.MaxPeers }}
max_peers_per_host = {{ .Transport.MaxPeersPerHost }}

# Send rate limits in bytes per second: for all peers together, and per address (a /64 of IPv6); 0: no limit. The first 128 KiB or more
# are sent at once. Addresses take turns.
send_rate = {{ .Transport.SendRate }}
send_rate_per_peer = {{ .Transport.SendRatePerPeer }}

# Sends large responses over RDMA (RoCE v2 or InfiniBand), bypassing TLS, if both ends have a device and name each other below; otherwise over
# TLS. "off", "auto", or "required": the node does not start without a device. Needs the program starlingd-rdma. ` + "`starlingd rdma check`" + `
# reports what is missing.
rdma = "{{ .Transport.RDMA }}"

# Peers allowed to use RDMA: node IDs, and networks such as "10.7.0.0/24", both comma-separated. RDMA neither authenticates nor encrypts:
# anyone in the fabric can read the responses, or damage them (the node detects damage and fetches again over TLS). Name trusted fabrics only.
rdma_peers = "{{ .Transport.RDMAPeers }}"
rdma_fabric = "{{ .Transport.RDMAFabric }}"

# Limit of registered, and so locked, memory for all RDMA channels, in bytes. It is divided among the peers that may use RDMA: the IDs in
# rdma_peers, and the addresses of rdma_fabric, of which max_peers count. A peer gets 10 to 38 MiB; further peers use TLS.
rdma_memory = {{ .Transport.RDMAMemory }}

[join]

# How a node without state joins if [statesync] enable is set in config.toml. "fast": over the transports of many peers at once. It trusts
# only the header named there by trust_height and trust_hash; rpc_servers are not needed. "cometbft": by CometBFT's own state sync, which
# needs rpc_servers.
mode = "{{ .Join.Mode }}"

# Transports to start from, as id@host:port or host:port, comma-separated, in addition to those of p2p.persistent_peers and p2p.seeds
# (port + 10).
peers = "{{ .Join.Peers }}"

# Memory limit for chunks in flight or being verified, in bytes.
memory_bytes = {{ .Join.MemoryBytes }}

# After this time without a reachable transport, or five minutes without a snapshot that can be proved, the node tries CometBFT's own state
# sync if statesync.rpc_servers is set. Without rpc_servers, a node that reaches no transport stops with a list of what it tried; a node that
# finds no snapshot keeps looking. A node below the first snapshot of a chain joins by blocks.
reach_timeout = "{{ .Join.ReachTimeout }}"

# Number of headers before the snapshot fetched with the state, at most until evidence about them has expired. If a block holds evidence of
# misbehaviour at a height whose header is missing, the node stops with exit status 8, and the next start fetches the header.
# 1000 headers take about 2 MB and less than a second; 0: none.
evidence_headers = {{ .Join.EvidenceHeaders }}

[catch_up]

# true: a node whose last block is more than five minutes old, or that has just joined, fetches the blocks since then over the transports of
# several peers and executes them. CometBFT starts, and RPC answers, when fewer than two blocks are missing. false: CometBFT's block sync
# fetches them.
enabled = {{ .CatchUp.Enabled }}

# With [statesync] enable, a node that was offline for more blocks than this fetches the parts of the state that differ instead of executing
# the blocks. Its block store then has a gap. 0: never.
state_threshold_blocks = {{ .CatchUp.StateThresholdBlocks }}

[status]

# Address of the status page, which shows what the node is doing and, during a join, each chunk. It also serves /livez, /readyz and
# /status.json. Example: "127.0.0.1:26680". "": no page. The page shows no secrets, changes nothing, and works before RPC does.
laddr = "{{ .Status.ListenAddress }}"

# true: laddr may be an address that other machines can reach. Anyone who can connect to it then sees the page.
public = {{ .Status.Public }}

# Host names under which browsers may open the page, comma-separated. Requests for any other name are refused, so that a web site whose own
# name points here cannot read the page. localhost and IP addresses are always accepted.
allowed_hosts = "{{ .Status.Hosts }}"

[grpc]

# Address of the gRPC endpoint, which serves clients in less time than RPC and in other languages (docs/spec/grpc.md). Example:
# "127.0.0.1:26690". "": none. [rpc] grpc_max_open_connections of config.toml limits its connections. If RPC
# has a certificate (tls_cert_file and tls_key_file), it uses the same. Like RPC, it does not ask clients who they are.
laddr = "{{ .GRPC.ListenAddress }}"
`))

func WriteApp(path string, c App) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(appTemplate.Execute(file, c), file.Close())
}
