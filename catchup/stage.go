package catchup

// State is what a node that starts has to do first. The names are BoR's, the meanings those of a
// chain whose blocks are final at once: none is reversible, so what tells the first two apart is
// how far the node is behind.
type State string

// The states.
const (
	// LastIrrCatchUp: far behind, or the blocks between are nowhere: the state of a later height is
	// fetched, and then the blocks since then.
	LastIrrCatchUp State = "last_irr_catch_up"
	CatchUp        State = "catch_up" // blocks are fetched and executed
	Normal         State = "normal"   // the others are less than two blocks ahead: consensus
)

// nearTip is how many blocks ahead the others may be when catching up ends: the last block has no
// canonical commit, and the one before is what CometBFT's block sync begins with.
const nearTip = 2

// Claim is what a peer says that it has, by its Status. Nothing of it is proved.
type Claim struct {
	First, Last int64 // blocks; 0, 0: none
	Snapshot    int64 // the newest; 0: none
}

// Facts are what Decide judges by. All heights are below 2^63.
type Facts struct {
	Height int64   // of the own last block; 0: none
	Claims []Claim // of those peers that are worth asking
	// Far is the number of blocks behind which a state is fetched instead; 0: none is, in any case.
	Far int64
}

// Decide returns what a node has to do. It only decides: the same facts give the same state, in
// whatever order the claims are. What peers claim may be false: who acts on it limits how long it
// waits for those that claim much and give nothing.
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
		return LastIrrCatchUp
	case next:
		return CatchUp
	}
	return Normal // nobody has the next block: CometBFT waits for somebody who has
}
