package syncbench

import (
	"bytes"
	"context"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const (
	quotaBytes = 1 << 40
	quotaAhead = 8                     // transactions that wait in a mempool; two fill a block
	quotaPause = 20 * time.Millisecond // until the mempool is read again
	// Half of the sets of keys are present.
	quotaSets, setKeys, setValue = 16, 238, 4000
	longAbsent, largeValue       = 400, 970_000
)

// quotaAccount has a right to all keys of the load.
func quotaAccount() ed25519.PrivKey { return ed25519.GenPrivKeyFromSecret([]byte("quota")) }

// quotaKey returns a key next to key i of the load, with a length in bytes.
func quotaKey(i int, variant byte, length int) []byte {
	key := shardedKey(i)
	return append(key, bytes.Repeat([]byte{variant}, length-len(key))...)
}

// quotaOperations returns the operations of a transaction of just under 2 MB, the first of which
// has number 0:
//
//	3n      a set of keys is put, with values that a witness leaves out
//	3n + 1  keys next to those of all sets must be absent, and a large value is read
//	3n + 2  the set that was put longest ago is deleted, and the large value put again
//
// The second is the one with the largest witness: the paths to the absent keys have all long keys.
func quotaOperations(number int) (all []tx.Operation) {
	set, large := number/3%quotaSets, quotaKey(0, 'l', tx.MaxKeyBytes)
	switch number % 3 {
	case 0:
		for i := range setKeys {
			all = append(all, tx.NewPut(quotaKey(set*setKeys+i, 's', tx.MaxKeyBytes), make([]byte, setValue)))
		}
	case 1:
		for i := range quotaSets * setKeys {
			length := len(shardedKey(i)) + 1
			if i < longAbsent {
				length = tx.MaxKeyBytes
			}
			all = append(all, tx.NewCompare(quotaKey(i, 'a', length), nil))
		}
		all = append(all, tx.NewRead(large))
	case 2:
		oldest := (set + quotaSets/2) % quotaSets
		for i := range setKeys {
			all = append(all, tx.NewDelete(quotaKey(oldest*setKeys+i, 's', tx.MaxKeyBytes)))
		}
		all = append(all, tx.NewPut(large, make([]byte, largeValue)))
	}
	return all
}

// spendQuota sends these transactions to a validator as fast as the network executes them. The keys
// of the last ones stay after the attack.
func (s *strangers) spendQuota(ctx context.Context, host string, url string) error {
	key := quotaAccount()
	rpc, err := rpcFrom(host, url)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, []string{url}, client.WithKey(key), client.WithChainID(network.ChainID))
	if err != nil {
		return err
	}
	for number := 0; ctx.Err() == nil; {
		waiting, err := rpc.NumUnconfirmedTxs(ctx)
		if err != nil {
			return err
		}
		if waiting.Count >= quotaAhead {
			_ = after(ctx, quotaPause, nil)
			continue
		}
		body := &tx.Body{Operations: quotaOperations(number)}
		if body.Nonce, err = c.Nonce(ctx, c.Account()); err != nil {
			return err
		}
		signed, err := tx.Sign(key, network.ChainID, body)
		if err != nil {
			return err
		}
		answer, err := rpc.BroadcastTxSync(ctx, signed)
		if err != nil {
			return err
		}
		s.sent.Add(1)
		switch answer.Code {
		case 0:
			number++
		case uint32(tx.CodeBusy):
			s.busy.Add(1)
			fallthrough
		default:
			_ = after(ctx, comeBack, nil)
		}
	}
	return ctx.Err()
}
