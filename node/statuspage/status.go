package statuspage

import (
	"encoding/binary"
	"time"
)

// Source supplies the displayed data. Its methods are called one at a time, and not after
// Server.Close; they must not wait for the network.
type Source interface {
	Status() Status
	// Map returns the chunks of the current or last join, in at most MaxCells cells.
	Map() Map
}

// Status is the textual content of the page, and the content of /status.json.
type Status struct {
	Time      time.Time `json:"time"`
	Phase     string    `json:"phase"` // one of the phases below
	Node      Node      `json:"node"`
	Chain     Chain     `json:"chain"`
	Tree      Tree      `json:"tree"`
	Caches    []Cache   `json:"caches"` // one per zone
	Flusher   Flusher   `json:"flusher"`
	Disk      Disk      `json:"disk"`
	Snapshots []int64   `json:"snapshots"` // heights that other nodes can join from
	Join      *Join     `json:"join"`      // nil: this process has not joined over the transport
	CatchUp   *CatchUp  `json:"catch_up"`  // nil: no blocks were fetched over the transport
	Sharded   *Sharded  `json:"sharded"`   // nil: the state is in the node's own home
	RDMA      *RDMA     `json:"rdma"`      // nil: RDMA is off
}

// RDMA describes the RDMA channels, which replace TLS for large responses.
type RDMA struct {
	// Missing is the reason why RDMA was not possible when the node started, and Fix the remedy.
	// "": RDMA is possible, and the other fields are set.
	Missing     string     `json:"missing,omitempty"`
	Fix         string     `json:"fix,omitempty"`
	PathsUp     int        `json:"paths_up"` // outbound and inbound channels
	QueuePairs  int        `json:"queue_pairs"`
	MemoryBytes int64      `json:"memory_bytes"` // registered memory
	Peers       []RDMAPeer `json:"peers"`        // at most MaxPeers
}

// RDMAPeer is a peer that has or had a channel, or could not establish one.
type RDMAPeer struct {
	ID            string `json:"id"`
	Connected     bool   `json:"connected"` // false: no channel, because the peer has disconnected
	PathsUp       int    `json:"paths_up"`  // 0: traffic uses TLS
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
	// Fallback is the reason why the last channel failed or could not be established: a reason of
	// the metric starling_transport_rdma_fallbacks_total, so that the page shows no addresses of
	// this host; "": none.
	Fallback     string    `json:"fallback"`
	FallbackTime time.Time `json:"fallback_time"`
}

// Sharded describes the storage nodes that keep the state.
type Sharded struct {
	Head    int64        `json:"head"`    // last block passed on to the storage nodes
	Durable int64        `json:"durable"` // newest height on the disks of enough replicas
	Lag     int64        `json:"lag_blocks"`
	Waiting string       `json:"waiting"` // what the node waits for; "": nothing
	Ranges  []ShardRange `json:"ranges"`
	Liars   []ShardLiar  `json:"liars"` // storage nodes that sent invalid responses
}

// ShardRange is a range of keys and the progress of its replicas.
type ShardRange struct {
	Range       string      `json:"range"`
	Durable     int64       `json:"durable"`
	QueuedBytes uint64      `json:"queued_bytes"` // updates kept for its replicas, in bytes
	Nodes       []ShardNode `json:"nodes"`
	// Damaged is the folder of damaged data that a storage node has put aside; "": none.
	Damaged string `json:"damaged,omitempty"`
	// Filling is the progress of a storage node that fetches the range; nil: it does not.
	Filling *Filling `json:"filling,omitempty"`
}

// Filling is the progress of fetching a range.
type Filling struct {
	Height         int64   `json:"height"`
	Bytes          uint64  `json:"bytes"` // on disk
	Total          uint64  `json:"total_bytes"`
	Reused         uint64  `json:"reused_bytes"` // part of Bytes that this attempt has not fetched
	BytesPerSecond uint64  `json:"bytes_per_second"`
	SecondsLeft    float64 `json:"seconds_left"` // 0: not known yet
}

// ShardNode is a replica of a range.
type ShardNode struct {
	ID        string `json:"id"`
	Address   string `json:"address"`
	Connected bool   `json:"connected"`
	Error     string `json:"error"` // why it is not connected
	State     string `json:"state"` // unheard, in step, behind, lagging
	Newest    int64  `json:"newest"`
	Durable   int64  `json:"durable"`
	LagBlocks int64  `json:"lag_blocks"`
}

// ShardLiar is a storage node that sent an invalid response.
type ShardLiar struct {
	ID      string    `json:"id"`
	Range   string    `json:"range"`
	Verdict string    `json:"verdict"`
	Count   int       `json:"count"`
	Last    time.Time `json:"last"`
}

// The phases of a node.
const (
	PhaseStarting   = "starting"    // opening databases, or executing local blocks
	PhaseJoining    = "joining"     // over the transport, see Join
	PhaseStateSync  = "state_sync"  // CometBFT's own state sync is in progress
	PhaseCatchingUp = "catching_up" // fetching and executing blocks
	PhaseRunning    = "running"     // participating in consensus, or following it
)

// Node identifies the node and its program.
type Node struct {
	Moniker    string `json:"moniker"`
	ID         string `json:"id"`
	ChainID    string `json:"chain_id"`
	Version    string `json:"version"`
	CometBFT   string `json:"cometbft_version"`
	AppVersion uint64 `json:"app_version"` // app version: the rules for executing blocks
	// Started is the time when this process opened the node.
	Started time.Time `json:"started"`
}

// Chain is the node's position in the chain.
type Chain struct {
	Height       int64     `json:"height"`        // height of the state
	OldestHeight int64     `json:"oldest_height"` // oldest state that can be queried
	AppHash      string    `json:"app_hash"`      // after that block
	BlockTime    time.Time `json:"block_time"`
	BlockSeconds float64   `json:"block_seconds"` // average interval of recent blocks; 0: unknown
	// LastTxHeight is the height of the newest block with transactions, and LastTxTime its time. 0:
	// there is none, or the node has not found it yet.
	LastTxHeight int64     `json:"last_tx_height"`
	LastTxTime   time.Time `json:"last_tx_time"`
	WaitingTxs   int       `json:"waiting_txs"` // number of transactions in the mempool
	Peers        int       `json:"peers"`       // number of CometBFT's peers
	// PeerList lists at most MaxPeers of them.
	PeerList []ChainPeer `json:"peer_list"`
	// Validator is nil if this node is not a validator.
	Validator  *Validator `json:"validator"`
	CatchingUp bool       `json:"catching_up"`
	// MissingHeaders is the number of missing headers, from before this node joined, that evidence
	// may refer to: a block with such evidence would stop the node.
	MissingHeaders int64 `json:"missing_headers"`
}

// ChainPeer is a node to which CometBFT is connected.
type ChainPeer struct {
	ID       string  `json:"id"`
	Moniker  string  `json:"moniker"`
	Address  string  `json:"address"`
	Outbound bool    `json:"outbound"` // this node dialled the peer
	Seconds  float64 `json:"seconds"`  // since the connection was established
}

// Validator describes this node as a validator.
type Validator struct {
	Power      uint64 `json:"power"`       // 0: unknown here, see Sharded
	LastHeight int64  `json:"last_height"` // last block with a complete commit; 0: none yet
	LastSigned bool   `json:"last_signed"`
	Blocks     int    `json:"blocks"` // of the last 100, the blocks that it could have signed
	Missed     int    `json:"missed"` // number of these that it did not sign
}

// Tree describes the state.
type Tree struct {
	Keys        int64  `json:"keys"`
	Bytes       uint64 `json:"bytes"` // total of the leaf records
	Height      int    `json:"height"`
	Chunks      uint32 `json:"chunks"`
	MemoryBytes uint64 `json:"memory_bytes"`
	HeldNodes   uint64 `json:"held_nodes"` // nodes that only older versions have
	HeldBytes   uint64 `json:"held_bytes"` // memory of these nodes
	Versions    int    `json:"versions"`
}

// Cache describes one zone's share of the cache.
type Cache struct {
	Zone   string `json:"zone"`
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
	// Misses that a larger share would have avoided.
	GhostHits   uint64 `json:"ghost_hits"`
	Entries     int    `json:"entries"`
	Bytes       int64  `json:"bytes"`
	TargetBytes int64  `json:"target_bytes"`
	DiskBytes   uint64 `json:"disk_bytes"` // disk space of the zone
}

// Flusher describes how far the state on disk lags behind the state in memory.
type Flusher struct {
	SafeHeight int64   `json:"safe_height"`
	LagBlocks  int     `json:"lag_blocks"`
	LagBytes   int64   `json:"lag_bytes"`
	LagSeconds float64 `json:"lag_seconds"`
}

// Disk is the disk of the node's data with the least free space.
type Disk struct {
	Known        bool   `json:"known"` // the file system reports free space
	FreeBytes    uint64 `json:"free_bytes"`
	MinFreeBytes int64  `json:"min_free_bytes"` // the node stops below this; 0: no check
}

// Join describes a join over the transport.
type Join struct {
	Phase       string  `json:"phase"` // looking, verifying, fetching, writing, done
	Height      int64   `json:"height"`
	Chunks      int     `json:"chunks"`
	ChunksDone  int     `json:"chunks_done"`
	Bytes       uint64  `json:"bytes"`
	BytesDone   uint64  `json:"bytes_done"`
	ReusedBytes uint64  `json:"reused_bytes"` // part of BytesDone that was already present
	WastedBytes uint64  `json:"wasted_bytes"` // invalid data, duplicates, cancelled responses
	Rejected    int     `json:"rejected"`     // invalid responses
	Refetched   int     `json:"refetched"`
	Connected   int     `json:"connected"` // number of peers
	Banned      int     `json:"banned"`    // number of peers
	Retargets   int     `json:"retargets"`
	Rate        uint64  `json:"rate"` // bytes per second
	Seconds     float64 `json:"seconds"`
	SecondsLeft float64 `json:"seconds_left"` // 0: unknown
	// MapVersion changes whenever the Map changes.
	MapVersion uint64 `json:"map_version"`
	Peers      []Peer `json:"peers"` // at most MaxPeers: those that sent the most, and banned ones
}

// CatchUp describes the blocks that the node fetches over the transport and executes before
// CometBFT is made.
type CatchUp struct {
	State       string  `json:"state"`  // state_sync, catch_up, or normal: done
	Height      int64   `json:"height"` // last executed block
	Target      int64   `json:"target"` // highest block that peers report with its commit
	Blocks      int64   `json:"blocks"` // executed blocks
	Bytes       uint64  `json:"bytes"`  // bytes of these blocks
	Rate        uint64  `json:"rate"`   // recent rate, in bytes per second
	BlockRate   float64 `json:"blocks_per_second"`
	Connected   int     `json:"connected"` // number of peers
	Banned      int     `json:"banned"`    // number of peers
	Seconds     float64 `json:"seconds"`
	SecondsLeft float64 `json:"seconds_left"` // 0: unknown
}

// MaxPeers is the maximum number of peers in a Status.
const MaxPeers = 200

// Peer is a node from which the state is fetched.
type Peer struct {
	Index     uint16  `json:"index"` // index in cells; 0: in no cell
	ID        string  `json:"id"`
	Address   string  `json:"address"` // "": not connected
	State     string  `json:"state"`   // new, proven, late, waiting, down, banned
	Reason    string  `json:"reason"`  // reason of the ban
	Rate      uint64  `json:"rate"`    // share of Join.Rate, in bytes per second
	RoundTrip float64 `json:"round_trip_seconds"`
	InFlight  int     `json:"in_flight"`
	Chunks    int     `json:"chunks"` // number of verified responses
	Bytes     uint64  `json:"bytes"`  // bytes of these responses
	Wasted    uint64  `json:"wasted_bytes"`
}

// MaxCells is the maximum number of cells in a Map: with more chunks, a cell represents several.
const MaxCells = 1 << 16

// Map is the state of a snapshot's chunks.
type Map struct {
	Version uint64
	Height  int64
	Chunks  int
	PerCell int // chunks per cell; the last cell may represent fewer
	Cells   []Cell
}

// Cell is the state of a chunk, or of PerCell consecutive chunks.
type Cell struct {
	State CellState
	Lied  bool   // a peer sent invalid data for it
	Peer  uint16 // Peer.Index of the peer of the last request or response; 0: none
}

// CellState is the state of a chunk. The numbers are used in /chunks.
type CellState uint8

// The states of a chunk.
const (
	CellWaiting  CellState = 0 // not requested yet
	CellAsked    CellState = 1 // requested
	CellChecking CellState = 2 // received, being verified
	CellStored   CellState = 3 // verified and written
	CellHere     CellState = 4 // already present
	CellPartly   CellState = 5 // for a cell of several chunks: some are stored, others are waiting
)

const (
	mapFormat = 1
	liedBit   = 0x80
)

// encode returns the Map as served at /chunks, all numbers big-endian:
//
//	format = 1 : u8 ‖ version : u64 ‖ height : u64 ‖ chunks : u32 ‖ chunks per cell : u32
//	‖ (state, and 0x80 after an invalid response : u8 ‖ peer : u16) × cells
func (m Map) encode() []byte {
	b := make([]byte, 0, 25+3*len(m.Cells))
	b = append(b, mapFormat)
	b = binary.BigEndian.AppendUint64(b, m.Version)
	b = binary.BigEndian.AppendUint64(b, uint64(m.Height))
	b = binary.BigEndian.AppendUint32(b, uint32(m.Chunks))
	b = binary.BigEndian.AppendUint32(b, uint32(m.PerCell))
	for _, c := range m.Cells {
		state := byte(c.State)
		if c.Lied {
			state |= liedBit
		}
		b = append(b, state)
		b = binary.BigEndian.AppendUint16(b, c.Peer)
	}
	return b
}
