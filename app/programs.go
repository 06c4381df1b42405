package app

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/tx"
)

// Programs (docs/decisions/0074-programs.md). An engine executes a call on the overlay, so a call
// is a part of its transaction like any other operation:
//
//	deploy, call ─► right to the program ─► engine ─► rights to all changed records ─► overlay ─► quotas ─► result, logs
//	                                         └─ reads ─► overlay: a missing node ends the run

// The events of programs: one for each log.
const (
	EventTypeProgram = "starling_program"
	EventAddress     = "address" // attribute: the address of the program in lower-case hex
	EventTopic       = "topic"   // attributes: topic0 to topic3, in lower-case hex
	EventData        = "data"    // attribute: the data of the log in lower-case hex
)

// runProgram executes a Deploy or a Call.
func (x *executor) runProgram(account []byte, operation *tx.Operation) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	if err := x.right(account, operation); err != nil {
		return fail(err)
	}
	call := callOf(account, operation)
	if call.To != nil {
		if err := x.hasCode(call.To); err != nil {
			return fail(err)
		}
	}
	env := program.Env{ChainID: x.params.ChainId, Height: uint64(x.height), Time: x.time}
	done, err := x.engine.Run(env, call, x.get)
	if err != nil {
		return fail(err)
	}
	if x.ran != nil {
		x.ran(done)
	}
	if done.Status != program.Done {
		return fail(refusedBy(done, &call))
	}
	if err := x.applyChanges(account, done.Changes); err != nil {
		return fail(err)
	}
	events, size := logEvents(done.Logs)
	if err := x.spendReads(uint64(len(done.Output)+size), uint64(1+len(events))); err != nil {
		return fail(err)
	}
	// It may be memory of base.
	result := tx.OperationResult{Found: true, Value: bytes.Clone(done.Output)}
	if call.To == nil {
		result.Value = done.Address
	}
	return result, events, nil
}

func callOf(account []byte, operation *tx.Operation) program.Call {
	if op := operation.GetCall(); op != nil {
		return program.Call{Account: account, To: op.To, Input: op.Input, Gas: op.Gas, Keys: int(op.Keys), Unnamed: int(op.Unnamed), Touch: op.Touch}
	}
	op := operation.GetDeploy()
	return program.Call{Account: account, Input: bytes.Join([][]byte{op.Code, op.Input}, nil), Gas: op.Gas, Keys: int(op.Keys), Unnamed: int(op.Unnamed)}
}

// programRight returns the key that a grant must cover so that the account may try a Deploy or a
// Call at all: the account record of the sender or of the program. Otherwise everybody with any
// grant could use up the gas of blocks.
func (x *executor) programRight(account []byte, operation *tx.Operation) []byte {
	if op := operation.GetCall(); op != nil {
		return program.AccountKey(op.To)
	}
	return program.AccountKey(x.engine.Address(account))
}

// hasCode returns a *tx.Error if there is no program at address.
func (x *executor) hasCode(address []byte) error {
	const nonceBytes = 8
	value, err := x.get(program.AccountKey(address))
	if err == nil && (len(value) <= nonceBytes || bytes.Equal(value[nonceBytes:], make([]byte, len(value)-nonceBytes))) {
		err = tx.Errorf(tx.CodeNoProgram, "there is no program at address %x", address)
	}
	return err
}

// refusedBy returns the refusal of a call that the engine did not complete.
func refusedBy(done *program.Result, call *program.Call) *tx.Error {
	switch done.Status {
	case program.Reverted:
		return tx.Errorf(tx.CodeReverted, "the program refused: %s", done.Reason)
	case program.OutOfGas:
		return tx.Errorf(tx.CodeOutOfGas, "the program needs more gas than %d: name more", call.Gas)
	case program.TooMany:
		return tx.Errorf(tx.CodeTooManyRecords, "the program needs more records than %d, or more than %d that touch does not name: name higher limits", call.Keys, call.Unnamed)
	default:
		return tx.Errorf(tx.CodeProgramFailed, "the program failed: %s", done.Reason)
	}
}

// applyChanges writes the changes of a call under the account's grants and their quotas. If nodes
// are missing in base, it continues to find other missing ones.
func (x *executor) applyChanges(account []byte, changes []program.Change) error {
	var lacking error
	quotas := make(map[string]*growth) // by prefix
	for _, c := range changes {
		if !tx.IsProgramKey(c.Key) {
			return fmt.Errorf("app: the engine of programs changed key %q, which is not a program's", c.Key)
		}
		g, err := x.mayTouch(account, c.Key)
		var old content
		if err == nil {
			old, err = x.set(c.Key, c.Value)
		}
		switch {
		case x.lacks(err):
			lacking = err
			continue
		case err != nil:
			return err
		}
		if g.quota != 0 {
			if quotas[string(g.prefix)] == nil {
				quotas[string(g.prefix)] = &growth{grant: g}
			}
			quotas[string(g.prefix)].bytes += int64(recordBytes(c.Key, contentOf(c.Value))) - int64(recordBytes(c.Key, old))
		}
		if x.needs != nil && c.Value == nil {
			x.removed = append(x.removed, c.Key)
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(quotas)) {
		switch err := x.withinQuota(quotas[prefix]); {
		case x.lacks(err):
			lacking = err
		case err != nil && lacking == nil:
			return err
		}
	}
	return lacking
}

// growth is by how many bytes a call lets the records under a grant with a quota grow.
type growth struct {
	grant
	bytes int64
}

// withinQuota returns a *tx.Error if records grew and now exceed the quota.
func (x *executor) withinQuota(g *growth) error {
	if g.bytes <= 0 {
		return nil
	}
	used, err := x.usage(g.prefix)
	if err == nil && used > g.quota {
		err = tx.Errorf(tx.CodeQuota, "the records under prefix %q would take %d bytes, the quota is %d: ask an administrator for a larger quota", shorten(g.prefix), used, g.quota)
	}
	return err
}

// logEvents returns the events of a program's logs, and the number of bytes by which they count as
// reads: that of their hexadecimal digits.
func logEvents(logs []program.Log) (events []abci.Event, size int) {
	for _, l := range logs {
		e := abci.Event{Type: EventTypeProgram, Attributes: []abci.EventAttribute{{Key: EventAddress, Value: hex.EncodeToString(l.Address), Index: true}}}
		for i, topic := range l.Topics {
			e.Attributes = append(e.Attributes, abci.EventAttribute{Key: fmt.Sprintf("%s%d", EventTopic, i), Value: hex.EncodeToString(topic), Index: true})
		}
		e.Attributes = append(e.Attributes, abci.EventAttribute{Key: EventData, Value: hex.EncodeToString(l.Data)})
		for _, a := range e.Attributes {
			size += len(a.Value)
		}
		events = append(events, e)
	}
	return events, size
}

// touched returns a key that a Call is likely to read or write, of those of its program and those
// that the sender names, and whether it is the last one.
func touched(call *tx.Call, step int) (key []byte, last bool) {
	const own = 2
	last = step == own+len(call.Touch)-1
	switch step {
	case 0:
		return program.AccountKey(call.To), last
	case 1:
		return program.CodeKey(call.To), last
	}
	return call.Touch[step-own], last
}

// exploreProgram finds the missing nodes of the rights to a Deploy or a Call that reached one of
// them. Its records were named before.
func (x *executor) exploreProgram(account []byte, operation *tx.Operation) error {
	keys := [][]byte{x.programRight(account, operation)}
	if call := operation.GetCall(); call != nil {
		keys = append(keys, call.Touch...)
	}
	for _, key := range keys {
		if !tx.IsProgramKey(key) {
			continue
		}
		g, err := x.mayTouch(account, key)
		if err == nil && g.quota != 0 {
			_, err = x.usage(g.prefix)
		}
		var refused *tx.Error
		if err != nil && !isMissing(err) && !errors.As(err, &refused) {
			return err
		}
	}
	return nil
}
