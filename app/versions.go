package app

import (
	"fmt"
	"math"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// The app version determines the rules by which a block is executed. It is a field of the
// parameters record, so the AppHash proves it, and the consensus parameter version.app, so headers
// contain it:
//
//	schedule_upgrade {2, H} ──► record 00 'u' ──► block H: executed under 1, its state has 2 ──► block H+1: executed under 2
//	                                                              │
//	                                                              └── a program that knows only 1 stops here (UpgradeError)

// rules contains the differences between versions. Everything that a new version does differently
// becomes a field here, and a block is executed only by the rules of its version. So old blocks
// have the same results when they are replayed.
type rules struct {
	perform func(x *executor, account []byte, operation *tx.Operation) (tx.OperationResult, []abci.Event, error)
	format  uint64 // for tx.DecodeVersion: which operations exist
	maxCost int    // maximum cost of a block; at least the cost of the largest transaction
	maxGas  uint64 // maximum sum of the gas that a block names; at least that of a transaction
	timed   bool   // whether results depend on the block's time
}

// versions holds the rules of all versions, those of version 1 first.
var versions = []rules{
	{perform: (*executor).perform, format: 1, maxCost: maxCost},
	// This one needs Options.Programs.
	{perform: (*executor).perform, format: 2, maxCost: maxCost, maxGas: maxGas, timed: true},
}

// GenesisVersion is the version with which every chain begins.
const GenesisVersion uint64 = 1

// NewestVersion returns the newest version that this program knows, with an engine of programs or
// without one.
func NewestVersion(programs bool) uint64 {
	if !programs {
		return GenesisVersion
	}
	return uint64(len(versions))
}

// rulesOf returns the rules of a version in a program with this engine, which may be nil. Versions
// above the newest exist only in a rehearsal (Options.NewestVersion), and use the rules of the
// newest.
func rulesOf(version uint64, engine program.Engine) *rules {
	return &versions[min(max(version, GenesisVersion), NewestVersion(engine != nil))-1]
}

// rules returns the rules of the block after a state with these parameters.
func (a *App) rules(params *Params) *rules { return rulesOf(params.AppVersion, a.options.Programs) }

// UpgradeError is returned if the next block has an app version that this program does not know.
type UpgradeError struct {
	Version uint64 // required version
	Newest  uint64 // newest version that this program knows
	Height  int64  // height of the last block of the version before; 0: unknown
	Info    string // from the transaction that scheduled the upgrade
}

func (e *UpgradeError) Error() string {
	since, info := "", ""
	if e.Height > 0 {
		since = fmt.Sprintf(" after block %d", e.Height)
	}
	if e.Info != "" {
		info = fmt.Sprintf(" (upgrade info: %q)", e.Info)
	}
	if !program.Built && e.Version <= NewestVersion(true) {
		return fmt.Sprintf("this starlingd was built with the tag noevm, without the engine of programs: the chain is of app version %d%s, and the newest that "+
			"this build executes is %d: install a starlingd that was built without the tag noevm and start it with the same home folder%s", e.Version, since, e.Newest, info)
	}
	return fmt.Sprintf("this program is too old: the chain is of app version %d%s, and the newest that this program knows is %d: "+
		"install a starlingd that knows version %d and start it with the same home folder%s", e.Version, since, e.Newest, e.Version, info)
}

// newest returns the newest version that this application executes.
func (a *App) newest() uint64 {
	if n := a.options.NewestVersion; n > 0 {
		return n
	}
	return NewestVersion(a.options.Programs != nil)
}

// mayExecute returns an UpgradeError if the block after this state needs a newer program.
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

// MayExecute returns an UpgradeError if the block after this state needs a newer program. It is
// meant for callers that are about to store a state that they received.
func (a *App) MayExecute(v *avlstar.Version) error {
	params, err := ReadParams(v)
	if err != nil {
		return err
	}
	return a.mayExecute(v, &params)
}

// CanGoOn returns an UpgradeError if the next block needs a newer program. The node must stop then;
// everything up to the last committed block is intact.
func (a *App) CanGoOn() error {
	_, v := a.Latest()
	if v == nil {
		return nil
	}
	defer v.Release()
	return a.MayExecute(v)
}

// readUpgrade reads the record of the upgrade that was scheduled last, or returns nil if there is
// none.
func readUpgrade(v *avlstar.Version) (*tx.ScheduleUpgrade, error) {
	value, ok, err := v.Get(UpgradeKey())
	if err != nil || !ok {
		return nil, err
	}
	u := new(tx.ScheduleUpgrade)
	if err := u.Unmarshal(value); err != nil {
		return nil, fmt.Errorf("%w: its upgrade record does not decode: %w", ErrNoState, err)
	}
	return u, nil
}

// scheduled returns the pending upgrade, or nil if there is none. The record of an upgrade that has
// begun is kept, because it contains the height at which it began.
func (x *executor) scheduled() (*tx.ScheduleUpgrade, error) {
	value, err := x.get(UpgradeKey())
	if err != nil || value == nil {
		return nil, err
	}
	u := new(tx.ScheduleUpgrade)
	if err := u.Unmarshal(value); err != nil {
		panic(fmt.Sprintf("app: the upgrade record does not decode: the state is damaged: %v", err))
	}
	if u.Version <= x.params.AppVersion {
		return nil, nil
	}
	return u, nil
}

func (x *executor) scheduleUpgrade(account []byte, op *tx.ScheduleUpgrade) (bool, *abci.Event, error) {
	if err := x.onlyAdmin(account, "schedule upgrades"); err != nil {
		return false, nil, err
	}
	before, err := x.get(UpgradeKey())
	if err != nil {
		return false, nil, err
	}
	if op.Height == 0 {
		u, err := x.scheduled()
		switch {
		case err != nil:
			return false, nil, err
		case u == nil:
			return false, nil, tx.Errorf(tx.CodeInvalidChange, "no upgrade is scheduled")
		case u.Version != op.Version:
			return false, nil, tx.Errorf(tx.CodeInvalidChange, "the upgrade that is scheduled is to version %d, not to %d", u.Version, op.Version)
		}
		event, err := x.write(UpgradeKey(), nil, KindUpgrade)
		return before != nil, event, err
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
		panic(err) // cannot happen: the memory has the computed size
	}
	event, err := x.write(UpgradeKey(), value, KindUpgrade)
	return before != nil, event, err
}

// beginUpgrade writes and returns the parameters of the next version after the last block of a
// version. It returns nil if this is not the last block.
func (x *executor) beginUpgrade() (*Params, error) {
	u, err := x.scheduled()
	if err != nil || u == nil || u.Height != uint64(x.height) {
		return nil, err
	}
	next := *x.params
	next.AppVersion = u.Version
	value, err := next.Marshal()
	if err != nil {
		panic(err) // cannot happen: the memory has the computed size
	}
	if _, err := x.set(ParamsKey(), value); err != nil {
		return nil, err
	}
	return &next, nil
}

// versionUpdate returns the update that tells CometBFT the app version of the following blocks.
func versionUpdate(version uint64) *cmtproto.ConsensusParams {
	return &cmtproto.ConsensusParams{Version: &cmtproto.VersionParams{App: version}}
}
