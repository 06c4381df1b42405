package app

import (
	"crypto/sha256"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/tx"
)

// decoder decodes transactions and remembers the valid ones. CometBFT passes each transaction
// several times (CheckTx, a recheck after every block, proposal, block), and verifying a signature
// costs a hundred times as much as the hash. Decoding depends only on the bytes and the form, so
// remembering changes no result.
type decoder struct {
	mu struct {
		sync.Mutex
		form          form
		recent, older map[[sha256.Size]byte]kept // when recent is full, it becomes older
		cost          int                        // cost of recent
	}
}

// form determines which transactions decode.
type form struct {
	chainID string
	version uint64 // for tx.DecodeVersion
}

// form returns the form of transactions after a state with these parameters.
func (a *App) form(params *Params) form { return form{params.ChainId, a.rules(params).format} }

// maxDecoderCost limits each of the two generations, in bytes.
const maxDecoderCost = 8 << 20

// decode decodes the transaction raw, whose SHA-256 is id.
func (d *decoder) decode(id [sha256.Size]byte, raw []byte, f form) (*tx.Tx, *tx.Error) {
	if t := d.lookup(id, f); t != nil {
		return t, nil
	}
	t, err := tx.DecodeVersion(raw, f.chainID, f.version)
	if err != nil {
		return nil, refusal(err, tx.CodeMalformed)
	}
	d.remember(id, t, len(raw), f)
	return t, nil
}

// refusal returns err as a response to a client: nil and a *tx.Error unchanged, any other error
// with the code otherwise.
func refusal(err error, otherwise tx.Code) *tx.Error {
	var refused *tx.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return refused
	}
	return tx.Errorf(otherwise, "%v", err)
}

func (d *decoder) lookup(id [sha256.Size]byte, f form) *tx.Tx {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.form != f {
		d.mu.form, d.mu.recent, d.mu.older, d.mu.cost = f, nil, nil, 0
	}
	if k, ok := d.mu.recent[id]; ok {
		return k.tx
	}
	k, ok := d.mu.older[id]
	if ok {
		d.keep(id, k) // what is still in use stays
	}
	return k.tx
}

func (d *decoder) remember(id [sha256.Size]byte, t *tx.Tx, size int, f form) {
	const perOperation, perTx = 64, 128 // for the Go structures around the bytes
	cost := size + perTx
	if t.Body != nil {
		for i := range t.Body.Operations {
			cost += perOperation * t.Body.Operations[i].Parts()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.mu.recent[id]; ok || d.mu.form != f {
		return
	}
	d.keep(id, kept{t, cost})
}

// kept is a transaction and the memory that it takes, in bytes.
type kept struct {
	tx   *tx.Tx
	cost int
}

// keep adds to the younger generation. The caller holds the lock.
func (d *decoder) keep(id [sha256.Size]byte, k kept) {
	if d.mu.recent == nil || d.mu.cost+k.cost > maxDecoderCost {
		d.mu.recent, d.mu.older, d.mu.cost = make(map[[sha256.Size]byte]kept), d.mu.recent, 0
	}
	d.mu.recent[id] = k
	d.mu.cost += k.cost
}

type decoded struct {
	id  [sha256.Size]byte
	tx  *tx.Tx
	err *tx.Error
}

// maxBatch is the largest number of transactions whose signatures are verified together. Larger
// batches gain little.
const maxBatch = 64

// decodeAll decodes the transactions of a block on all processors, in batches.
func (d *decoder) decodeAll(raw [][]byte, f form) []decoded {
	var (
		all     = make([]decoded, len(raw))
		size    = min(maxBatch, 1+len(raw)/(4*runtime.GOMAXPROCS(0)))
		batches = (len(raw) + size - 1) / size
		next    atomic.Int64
		workers sync.WaitGroup
	)
	for range min(runtime.GOMAXPROCS(0), batches) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < batches; i = int(next.Add(1)) - 1 {
				from, to := i*size, min((i+1)*size, len(raw))
				d.decodeBatch(all[from:to], raw[from:to], f)
			}
		})
	}
	workers.Wait()
	return all
}

// decodeBatch decodes raw into all.
func (d *decoder) decodeBatch(all []decoded, raw [][]byte, f form) {
	var (
		unknown [][]byte
		at      []int // indexes of unknown in raw
	)
	for i, b := range raw {
		all[i].id = sha256.Sum256(b)
		if all[i].tx = d.lookup(all[i].id, f); all[i].tx == nil {
			unknown, at = append(unknown, b), append(at, i)
		}
	}
	txs, errs := tx.DecodeAll(unknown, f.chainID, f.version)
	for n, i := range at {
		if all[i].tx = txs[n]; errs[n] != nil {
			all[i].err = refusal(errs[n], tx.CodeMalformed)
			continue
		}
		d.remember(all[i].id, txs[n], len(raw[i]), f)
	}
}

// Verify returns the transactions that decode, with a right signature if they are signed. It
// verifies the signatures in one batch, and remembers the valid transactions for CheckTx. It
// returns all if there is no state yet.
func (a *App) Verify(raw [][]byte) (valid [][]byte) {
	v, params := a.check.state()
	if v == nil {
		return raw
	}
	defer v.Release()
	all := make([]decoded, len(raw))
	a.decoder.decodeBatch(all, raw, a.form(params))
	for i := range all {
		if all[i].err == nil {
			valid = append(valid, raw[i])
		}
	}
	return valid
}
