package statuspage

import (
	"encoding/binary"
	"time"
)

// Source supplies what is shown. Its methods are called one at a time, and not after Server.Close;
// they must not wait for the network.
type Source interface {
	Status() Status
	// Map returns the chunks of the current or last join, in at most MaxCells cells.
	Map() Map
}

// Status is what the page shows as text, and the content of /status.json.
type Status struct {
	Time      time.Time `json:"time"`
	Phase     string    `json:"phase"` // one of the phases below
	Node      Node      `json:"node"`
	Chain     Chain     `json:"chain"`
	Tree      Tree      `json:"tree"`
	Caches    []Cache   `json:"caches"` // one for each zone
	Flusher   Flusher   `json:"flusher"`
	Disk      Disk      `json:"disk"`
	Snapshots []int64   `json:"snapshots"` // heights that other nodes can join from
	Join      *Join     `json:"join"`      // nil: this process has not joined over the transport
	CatchUp   *CatchUp  `json:"catch_up"`  // nil: no block was fetched over the transport
	Sharded   *Sharded  `json:"sharded"`   // nil: the state is in the node's own home
	RDMA      *RDMA     `json:"rdma"`      // nil: it is off
}

// RDMA describes the paths by RDMA, which carry what else goes over TLS.
type RDMA struct {
	// Lacking is why no path could be made when the node started, and Mend what to do. Empty: paths
	// are possible, and the rest is set.
	Lacking     string     `json:"lacking,omitempty"`
	Mend        string     `json:"mend,omitempty"`
	PathsUp     int        `json:"paths_up"` // both those that were dialled and those of peers
	QueuePairs  int        `json:"queue_pairs"`
	MemoryBytes int64      `json:"memory_bytes"` // registered
	Peers       []RDMAPeer `json:"peers"`        // at most MaxPeers
}

// RDMAPeer is a peer that has or had a path, or could not have one.
type RDMAPeer struct {
	ID            string `json:"id"`
	Connected     bool   `json:"connected"` // false: it has no paths because it has gone
	PathsUp       int    `json:"paths_up"`  // 0: what is sent and received goes over TLS
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
	// Fallback is why a path ended, or was not made, last: a reason of the metric
	// starling_transport_rdma_fallbacks_total, so that no page shows addresses of this host; empty:
	// none has.
	Fallback     string    `json:"fallback"`
	FallbackTime time.Time `json:"fallback_time"`
}

// Sharded describes the storage nodes that keep the state.
type Sharded struct {
	Head    int64        `json:"head"`    // the last block whose changes are for the storage nodes
	Durable int64        `json:"durable"` // the newest height on the disks of enough replicas
	Lag     int64        `json:"lag_blocks"`
	Waiting string       `json:"waiting"` // what the node waits for; empty: nothing
	Ranges  []ShardRange `json:"ranges"`
	Liars   []ShardLiar  `json:"liars"` // storage nodes that sent what no honest one sends
}

// ShardRange is a range of keys and where its replicas stand.
type ShardRange struct {
	Range       string      `json:"range"`
	Durable     int64       `json:"durable"`
	QueuedBytes uint64      `json:"queued_bytes"` // of updates that are kept for its replicas
	Nodes       []ShardNode `json:"nodes"`
}

// ShardNode is a replica of a range.
type ShardNode struct {
	ID        string `json:"id"`
	Address   string `json:"address"`
	Connected bool   `json:"connected"`
	Error     string `json:"error"` // why it is not connected
	State     string `json:"state"` // unheard, in step, lagging
	Newest    int64  `json:"newest"`
	Durable   int64  `json:"durable"`
	LagBlocks int64  `json:"lag_blocks"`
}

// ShardLiar is a storage node that sent what no honest one sends.
type ShardLiar struct {
	ID      string    `json:"id"`
	Range   string    `json:"range"`
	Verdict string    `json:"verdict"`
	Count   int       `json:"count"`
	Last    time.Time `json:"last"`
}

// The phases of a node.
const (
	PhaseStarting   = "starting"    // opens its databases, or executes blocks that it has
	PhaseJoining    = "joining"     // over the transport, see Join
	PhaseStateSync  = "state_sync"  // CometBFT's own state sync is under way
	PhaseCatchingUp = "catching_up" // fetches and executes blocks
	PhaseRunning    = "running"     // takes part in consensus, or follows it
)

// Node identifies the node and its program.
type Node struct {
	Moniker    string `json:"moniker"`
	ID         string `json:"id"`
	ChainID    string `json:"chain_id"`
	Version    string `json:"version"`
	CometBFT   string `json:"cometbft_version"`
	AppVersion uint64 `json:"app_version"` // the rules by which blocks are executed
	// Started is when this process opened the node.
	Started time.Time `json:"started"`
}

// Chain is the node's position in the chain.
type Chain struct {
	Height       int64     `json:"height"`        // of the state
	OldestHeight int64     `json:"oldest_height"` // of the oldest state that answers queries
	AppHash      string    `json:"app_hash"`      // after that block
	BlockTime    time.Time `json:"block_time"`
	BlockSeconds float64   `json:"block_seconds"` // mean time between recent blocks; 0: unknown
	Peers        int       `json:"peers"`         // of CometBFT
	// PeerList are at most MaxPeers of them.
	PeerList []ChainPeer `json:"peer_list"`
	// Validator is nil if this node is none.
	Validator  *Validator `json:"validator"`
	CatchingUp bool       `json:"catching_up"`
	// MissingHeaders is the number of headers from before this node joined that evidence may be
	// about and that are not here: a block with such evidence would stop the node.
	MissingHeaders int64 `json:"missing_headers"`
}

// ChainPeer is a node to which CometBFT is connected.
type ChainPeer struct {
	ID       string  `json:"id"`
	Moniker  string  `json:"moniker"`
	Address  string  `json:"address"`
	Outbound bool    `json:"outbound"` // this node has dialled it
	Seconds  float64 `json:"seconds"`  // since it is connected
}

// Validator is what this node does as one.
type Validator struct {
	Power      uint64 `json:"power"`       // 0: not known here, see Sharded
	LastHeight int64  `json:"last_height"` // the last block whose commit is complete; 0: none yet
	LastSigned bool   `json:"last_signed"`
	Blocks     int    `json:"blocks"` // that it could have signed, of the last 100
	Missed     int    `json:"missed"` // of these
}

// Tree describes the state.
type Tree struct {
	Keys        int64  `json:"keys"`
	Bytes       uint64 `json:"bytes"` // of the leaf records
	Height      int    `json:"height"`
	Chunks      uint32 `json:"chunks"`
	MemoryBytes uint64 `json:"memory_bytes"`
	HeldNodes   uint64 `json:"held_nodes"` // nodes that only older versions have
	HeldBytes   uint64 `json:"held_bytes"` // memory of those
	Versions    int    `json:"versions"`
}

// Cache describes one zone's part of the shared cache.
type Cache struct {
	Zone   string `json:"zone"`
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
	// those of the misses that a larger share would have avoided
	GhostHits   uint64 `json:"ghost_hits"`
	Entries     int    `json:"entries"`
	Bytes       int64  `json:"bytes"`
	TargetBytes int64  `json:"target_bytes"`
	DiskBytes   uint64 `json:"disk_bytes"` // of the zone
}

// Flusher is how far the state on disk lags behind the one in memory.
type Flusher struct {
	SafeHeight int64   `json:"safe_height"`
	LagBlocks  int     `json:"lag_blocks"`
	LagBytes   int64   `json:"lag_bytes"`
	LagSeconds float64 `json:"lag_seconds"`
}

// Disk is the disk of the node's data with the least free space.
type Disk struct {
	Known        bool   `json:"known"` // the file system reports it
	FreeBytes    uint64 `json:"free_bytes"`
	MinFreeBytes int64  `json:"min_free_bytes"` // the node stops below this; 0: it does not check
}

// Join describes a join over the transport.
type Join struct {
	Phase       string  `json:"phase"` // looking, verifying, fetching, writing, done
	Height      int64   `json:"height"`
	Chunks      int     `json:"chunks"`
	ChunksDone  int     `json:"chunks_done"`
	Bytes       uint64  `json:"bytes"`
	BytesDone   uint64  `json:"bytes_done"`
	ReusedBytes uint64  `json:"reused_bytes"` // those of BytesDone that were already present
	WastedBytes uint64  `json:"wasted_bytes"` // lies, second copies, cancelled answers
	Rejected    int     `json:"rejected"`     // answers that proved a lie
	Refetched   int     `json:"refetched"`
	Connected   int     `json:"connected"` // number of peers
	Banned      int     `json:"banned"`    // number of peers
	Retargets   int     `json:"retargets"`
	Rate        uint64  `json:"rate"` // bytes a second
	Seconds     float64 `json:"seconds"`
	SecondsLeft float64 `json:"seconds_left"` // 0: unknown
	// MapVersion changes whenever the Map does.
	MapVersion uint64 `json:"map_version"`
	Peers      []Peer `json:"peers"` // at most MaxPeers: those that gave most, and banned ones
}

// CatchUp describes how the node fetches blocks over the transport and executes them, before there
// is a CometBFT.
type CatchUp struct {
	State       string  `json:"state"`  // last_irr_catch_up, catch_up, normal: it is over
	Height      int64   `json:"height"` // of the last block that was executed
	Target      int64   `json:"target"` // of the last one that peers claim to have with its commit
	Blocks      int64   `json:"blocks"` // executed
	Bytes       uint64  `json:"bytes"`  // of these
	Rate        uint64  `json:"rate"`   // bytes a second, of late
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
	Index     uint16  `json:"index"` // how cells refer to it; 0: no cell does
	ID        string  `json:"id"`
	Address   string  `json:"address"` // empty: not connected
	State     string  `json:"state"`   // new, proven, late, waiting, down, banned
	Reason    string  `json:"reason"`  // why it was banned
	Rate      uint64  `json:"rate"`    // bytes a second, of Join.Rate
	RoundTrip float64 `json:"round_trip_seconds"`
	InFlight  int     `json:"in_flight"`
	Chunks    int     `json:"chunks"` // its answers that were verified
	Bytes     uint64  `json:"bytes"`  // of those answers
	Wasted    uint64  `json:"wasted_bytes"`
}

// MaxCells is the maximum number of cells in a Map: with more chunks, a cell stands for several.
const MaxCells = 1 << 16

// Map is the state of the chunks of a snapshot.
type Map struct {
	Version uint64
	Height  int64
	Chunks  int
	PerCell int // chunks per cell; the last cell may stand for fewer
	Cells   []Cell
}

// Cell is the state of a chunk, or of PerCell chunks in a row.
type Cell struct {
	State CellState
	Lied  bool   // a peer sent false data instead
	Peer  uint16 // Peer.Index of the peer that was asked or sent it last; 0: none
}

// CellState is the state of a chunk. The numbers are those in /chunks.
type CellState uint8

// The states of a chunk.
const (
	CellWaiting  CellState = 0 // not requested yet
	CellAsked    CellState = 1 // requested
	CellChecking CellState = 2 // received, being verified
	CellStored   CellState = 3 // verified and written
	CellHere     CellState = 4 // already present
	CellPartly   CellState = 5 // for a cell of several chunks: some are stored, the others wait
)

const (
	mapFormat = 1
	liedBit   = 0x80
)

// encode returns the Map as served at /chunks, all numbers big-endian:
//
//	format = 1 : u8 ‖ version : u64 ‖ height : u64 ‖ chunks : u32 ‖ chunks per cell : u32
//	‖ (state, and 0x80 if a peer lied : u8 ‖ peer : u16) × cells
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
