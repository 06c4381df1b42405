package comet

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/evidence"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightblocks"
)

// ErrHeaderMissing: the network decided a block with evidence about a height whose header this node
// does not have. The next start fetches it.
var ErrHeaderMissing = errors.New("a block holds evidence about a height whose header is missing")

// Gap is the range of missing headers that evidence may refer to: below First, down to Wanted. The
// zero Gap is empty.
type Gap struct {
	First  int64 `json:"first"`
	Wanted int64 `json:"wanted"`
}

// Headers returns the number of missing headers.
func (g Gap) Headers() int64 { return max(g.First-g.Wanted, 0) }

// gapKey is the key of the Gap in the evidence database. CometBFT's own keys there begin with bytes
// 0 and 1.
var gapKey = []byte("starling/gap")

// Gap returns the range of missing headers. A gap for which evidence has expired is returned as
// empty.
func (d *Databases) Gap() (g Gap, err error) {
	db, err := d.DB("evidence")
	if err != nil {
		return g, err
	}
	raw, err := db.Get(gapKey)
	if err != nil || raw == nil {
		return g, err
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		return Gap{}, fmt.Errorf("CometBFT's evidence database, %q: %w", gapKey, err)
	}
	below, _, err := d.Above(g)
	if err != nil {
		return Gap{}, err
	}
	if g.Headers() == 0 {
		return g, nil
	}
	if below == nil { // absent or pruned: no evidence needs the headers below it
		blocks, err := d.Blocks()
		if err != nil || blocks.Base() > g.First {
			return Gap{}, err
		}
		return g, nil
	}
	expired, err := d.Expired()
	if err != nil || expired(below) {
		return Gap{}, err
	}
	return g, nil
}

// Expired returns a function that reports whether evidence about a block is too old for the next
// one.
func (d *Databases) Expired() (func(*cmttypes.Header) bool, error) {
	states, err := d.States()
	if err != nil {
		return nil, err
	}
	state, err := states.Load()
	if err != nil {
		return nil, fmt.Errorf("CometBFT's state database: %w", err)
	}
	return func(h *cmttypes.Header) bool {
		return evidence.IsEvidenceExpired(state.LastBlockHeight, state.LastBlockTime, h.Height, h.Time, state.ConsensusParams.Evidence)
	}, nil
}

// Above returns the header that links to the first missing one, and its validators. nil: this node
// does not have that header, so it cannot fetch the missing ones.
func (d *Databases) Above(g Gap) (*cmttypes.Header, *cmttypes.ValidatorSet, error) {
	blocks, err := d.Blocks()
	if err != nil {
		return nil, nil, err
	}
	states, err := d.States()
	if err != nil {
		return nil, nil, err
	}
	meta := blocks.LoadBlockMeta(g.First)
	if meta == nil {
		return nil, nil, nil
	}
	set, err := states.LoadValidators(g.First)
	if err != nil {
		return nil, nil, fmt.Errorf("validators of height %d: %w", g.First, err)
	}
	return &meta.Header, set, nil
}

// Want records that the header of a height is needed, and all headers between it and the first
// existing one.
func (d *Databases) Want(height int64) error {
	blocks, err := d.Blocks()
	if err != nil {
		return err
	}
	first := blocks.Base()
	for first > 1 && blocks.LoadBlockMeta(first-1) != nil {
		first--
	}
	return d.recordGap(Gap{First: first, Wanted: height}, true)
}

// SetGap records the missing headers.
func (d *Databases) SetGap(g Gap) error { return d.recordGap(g, false) }

// recordGap records a gap. Once a gap is wanted, because the node stops for it, no other gap is
// recorded until the next start.
func (d *Databases) recordGap(g Gap, wanted bool) error {
	db, err := d.DB("evidence")
	if err != nil {
		return err
	}
	raw, err := json.Marshal(g)
	if err != nil {
		return err
	}
	d.gap.Lock()
	defer d.gap.Unlock()
	if d.gap.wanted && !wanted {
		return nil
	}
	d.gap.wanted = wanted
	return db.SetSync(gapKey, raw)
}

// Fill adds blocks from First-1 downwards, which close part of a gap. It returns the rest of the
// gap.
func (d *Databases) Fill(g Gap, found []lightblocks.Ancestor) (Gap, error) {
	var databases []dbm.DB
	for _, id := range []string{"blockstore", "state", "evidence"} {
		db, err := d.DB(id)
		if err != nil {
			return g, err
		}
		databases = append(databases, db)
	}
	if len(found) == 0 {
		return g, nil
	}
	states, err := d.States()
	if err != nil {
		return g, err
	}
	_, none := states.LoadValidators(found[0].Height)
	if err := saveAncestors(databases[0], databases[1], databases[2], found, none == nil); err != nil {
		return g, err
	}
	g.First = found[len(found)-1].Height
	return g, d.SetGap(g)
}

// missingHeader matches the error of CometBFT's evidence pool about a height that it cannot look up
// (evidence/verify.go, state/errors.go).
var missingHeader = regexp.MustCompile(`(?:don't have (?:header|header at height|commit at height)|could not find validator set for height) #(\d+)`)

// headerMissing returns the height in the error with which a decided block was rejected. ok is
// false if the error has another cause.
func headerMissing(cause string) (height int64, ok bool) {
	found := missingHeader.FindStringSubmatch(cause)
	if found == nil {
		return 0, false
	}
	height, err := strconv.ParseInt(found[1], 10, 64)
	return height, err == nil
}
