package app

import (
	"fmt"
	"math"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// The version of the state machine says by which rules a block is executed. It is a field of the parameters record, so the AppHash proves
// it, and the consensus parameter version.app, so headers name it:
//
//	schedule_upgrade {2, H} ──► record 00 'u' ──► block H: executed under 1, its state says 2 ──► block H+1: executed under 2
//	                                                              │
//	                                                              └── a program that knows only 1 ends here (UpgradeError)

// rules are what versions differ in. What a new version does differently becomes a field here, and a block is executed by no other way than
// through the rules of its version: so that old blocks, replayed, give what they gave.
type rules struct {
	operation func(x *executor, account []byte, operation *tx.Operation) (found bool, value []byte, event *abci.Event, err *tx.Error)
}

// versions are the rules of all versions, those of version 1 first.
var versions = []rules{
	{operation: (*executor).operation},
}

// GenesisVersion is the version under which every chain begins.
const GenesisVersion uint64 = 1

// NewestVersion is the newest version that this program knows.
func NewestVersion() uint64 { return uint64(len(versions)) }

// rulesOf returns the rules of a version. One that was made up for a rehearsal (Options.NewestVersion) has those of the newest.
func rulesOf(version uint64) *rules {
	return &versions[min(max(version, GenesisVersion), NewestVersion())-1]
}

// UpgradeError: the next block is for a program that knows a newer version than this one.
type UpgradeError struct {
	Version uint64 // that is needed
	Newest  uint64 // that this program knows
	Height  int64  // of the last block before it; 0: not known
	Info    string // of who scheduled the upgrade
}

func (e *UpgradeError) Error() string {
	since, info := "", ""
	if e.Height > 0 {
		since = fmt.Sprintf(" after block %d", e.Height)
	}
	if e.Info != "" {
		info = fmt.Sprintf(" (the upgrade's own words: %q)", e.Info)
	}
	return fmt.Sprintf("this program is too old: the chain is of app version %d%s, and the newest that this program knows is %d: "+
		"install a starlingd that knows version %d and start it on the same home, nothing else is needed%s", e.Version, since, e.Newest, e.Version, info)
}

// newest is the newest version that this application executes.
func (a *App) newest() uint64 {
	if n := a.options.NewestVersion; n > 0 {
		return n
	}
	return NewestVersion()
}

// mayExecute returns an UpgradeError if the block after this state is for a newer program.
func (a *App) mayExecute(v *avlstar.Version, params *Params) error {
	if params.AppVersion <= a.newest() {
		return nil
	}
	e := &UpgradeError{Version: params.AppVersion, Newest: a.newest()}
	if u, err := readUpgrade(v); err == nil && u != nil && u.Version == e.Version {
		e.Height, e.Info = int64(u.Height), u.Info
	}
	return e
}

// MayExecute returns an UpgradeError if the block after this state is for a newer program. It is for whoever is about to keep a state
// that came from elsewhere.
func (a *App) MayExecute(v *avlstar.Version) error {
	params, err := ReadParams(v)
	if err != nil {
		return err
	}
	return a.mayExecute(v, &params)
}

// CanGoOn returns an UpgradeError if the block after the last one that was committed is for a newer program. The node must stop then; what
// was committed is whole.
func (a *App) CanGoOn() error {
	_, v := a.Latest()
	if v == nil {
		return nil
	}
	defer v.Release()
	return a.MayExecute(v)
}

// readUpgrade reads the record of the upgrade that was scheduled last, nil: none.
func readUpgrade(v *avlstar.Version) (*tx.ScheduleUpgrade, error) {
	value, ok := v.Get(UpgradeKey())
	if err := v.Err(); err != nil || !ok {
		return nil, err
	}
	u := new(tx.ScheduleUpgrade)
	if err := u.Unmarshal(value); err != nil {
		return nil, fmt.Errorf("%w: its upgrade record does not decode: %w", ErrNoState, err)
	}
	return u, nil
}

// scheduled returns the upgrade that is to come, nil: none. The record of one that has begun stays, to tell when that was.
func (x *executor) scheduled() *tx.ScheduleUpgrade {
	value := x.get(UpgradeKey())
	if value == nil {
		return nil
	}
	u := new(tx.ScheduleUpgrade)
	if err := u.Unmarshal(value); err != nil {
		panic(fmt.Sprintf("app: the upgrade record does not decode: the state is damaged: %v", err))
	}
	if u.Version <= x.params.AppVersion {
		return nil
	}
	return u
}

func (x *executor) scheduleUpgrade(account []byte, op *tx.ScheduleUpgrade) (bool, *abci.Event, *tx.Error) {
	if !x.isAdmin(account) {
		return false, nil, notAdmin(account, "schedule upgrades")
	}
	found := x.get(UpgradeKey()) != nil
	if op.Height == 0 {
		switch u := x.scheduled(); {
		case u == nil:
			return false, nil, tx.Errorf(tx.CodeInvalidChange, "no upgrade is scheduled")
		case u.Version != op.Version:
			return false, nil, tx.Errorf(tx.CodeInvalidChange, "the upgrade that is scheduled is to version %d, not to %d", u.Version, op.Version)
		}
		return found, x.write(UpgradeKey(), nil, KindUpgrade), nil
	}
	switch next := x.params.AppVersion + 1; {
	case op.Version != next:
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "the chain is of version %d, so the next one is %d, not %d", x.params.AppVersion, next, op.Version)
	case op.Height <= uint64(x.height):
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "block %d cannot be the last one of version %d: this one is %d", op.Height, x.params.AppVersion, x.height)
	case op.Height >= math.MaxInt64:
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "there is no block after %d", op.Height)
	}
	value, err := op.Marshal()
	if err != nil {
		panic(err) // it writes into memory of the size that it computed
	}
	return found, x.write(UpgradeKey(), value, KindUpgrade), nil
}

// beginUpgrade ends the last block of a version: it returns the parameters of the next one, which it has written; nil: there is none.
func (x *executor) beginUpgrade() *Params {
	u := x.scheduled()
	if u == nil || u.Height != uint64(x.height) {
		return nil
	}
	next := *x.params
	next.AppVersion = u.Version
	value, err := next.Marshal()
	if err != nil {
		panic(err) // it writes into memory of the size that it computed
	}
	x.set(ParamsKey(), value)
	return &next
}

// versionUpdate tells CometBFT of the version of the blocks that follow.
func versionUpdate(version uint64) *cmtproto.ConsensusParams {
	return &cmtproto.ConsensusParams{Version: &cmtproto.VersionParams{App: version}}
}
