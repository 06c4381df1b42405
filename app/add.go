package app

import (
	"strconv"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/tx"
)

// maxNumberBytes is the length of the longest number, the least int64.
const maxNumberBytes = len("-9223372036854775808")

// add adds to the number at a client's key, under the account's grant. The value of the operation
// is the new number.
func (x *executor) add(account []byte, op *tx.Add) (found bool, value []byte, event *abci.Event, err error) {
	fail := func(err error) (bool, []byte, *abci.Event, error) { return false, nil, nil, err }
	if _, err := x.mayTouch(account, op.Key); err != nil {
		return fail(err)
	}
	before, err := x.number(op.Key)
	if err != nil {
		return fail(err)
	}
	after := before + op.Delta
	least, most := op.Limits()
	if (after < before) != (op.Delta < 0) || after < least || after > most {
		return fail(tx.Errorf(tx.CodeOutOfBounds, "key %q has %d, and %d more is not from %d to %d", shorten(op.Key), before, op.Delta, least, most))
	}
	value = strconv.AppendInt(nil, after, 10)
	old, err := x.mayWrite(account, op.Key, value)
	if err != nil {
		return fail(err)
	}
	event, err = x.write(op.Key, value, KindPut)
	return old.present(), value, event, err
}

// number returns the number at key, or a *tx.Error if there is another value. It does not read a
// value that is too long for a number.
func (x *executor) number(key []byte) (int64, error) {
	c, err := x.peek(key)
	switch {
	case err != nil || !c.present():
		return 0, err
	case c.length <= maxNumberBytes && c.missing():
		c.value, err = x.inBase(key)
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(c.value), 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != string(c.value) {
		return 0, tx.Errorf(tx.CodeNotNumber, "key %q has no decimal number as its value, so nothing can be added to it", shorten(key))
	}
	return n, nil
}
