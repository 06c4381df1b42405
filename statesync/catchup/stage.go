package catchup

// State is what a starting node has to do first. BoR calls the first state last_irr_catch_up. On
// this chain all blocks are final at once and none is reversible, so the first two states differ
// only in how far the node is behind.
type State string

// The states.
const (
	// StateSync: the node is far behind, or no peer has the blocks between. It fetches the
	// state of a later height, and then the blocks since that height.
	StateSync State = "state_sync"
	CatchUp   State = "catch_up" // fetch and execute blocks
	Normal    State = "normal"   // peers are less than two blocks ahead: start consensus
)

// nearTip is the lead of the peers, in blocks, below which catching up ends: the last block has no
// canonical commit, and the block before it is where CometBFT's block sync begins.
const nearTip = 2

// Claim is what a peer reports in its Status. It is unverified.
type Claim struct {
	First, Last int64 // blocks; 0, 0: none
	Snapshot    int64 // newest height; 0: none
}

// Facts are the input of Decide. All heights are below 2^63.
type Facts struct {
	Height int64   // of the node's last block; 0: none
	Claims []Claim // of the peers that may be asked
	// Far is the number of blocks behind above which a state is fetched instead; 0: never.
	Far int64
}

// Decide returns what a node has to do. It is a pure function of the facts; the order of the claims
// does not matter. Claims may be false, so the caller must limit how long it waits for peers that
// claim much and send nothing.
func Decide(f Facts) State {
	var newest int64
	next, snapshot := false, false
	for _, c := range f.Claims {
		newest = max(newest, c.Last)
		next = next || c.First <= f.Height+1 && f.Height+1 < c.Last
		snapshot = snapshot || c.Snapshot > f.Height
	}
	state := f.Far > 0 && snapshot
	switch behind := newest - f.Height; {
	case behind < nearTip:
		return Normal
	case state && (behind > f.Far || !next):
		return StateSync
	case next:
		return CatchUp
	}
	return Normal // no peer has the next block: CometBFT waits for one
}
