package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// The paths of queries (docs/spec/queries.md).
const (
	PathKey   = "/key"   // data: a key
	PathRange = "/range" // data: a RangeRequest; value: a RangeResponse
	// Data: an account; value: u64be, the nonce of its next transaction.
	PathNonce     = "/nonce"
	PathSnapshots = "/snapshots" // value: JSON, a list of SnapshotInfo
	PathHeights   = "/heights"   // value: JSON, a HeightsInfo
	PathSimulate  = "/simulate"  // data: a tx.Body; value: a tx.Simulation
)

// Limits of a response to PathRange, whichever is reached first. A single entry always fits. With
// its proof, a response stays below the 4 MiB of a gRPC message.
const (
	MaxRangeEntries = 10_000
	MaxRangeBytes   = 2 << 20 // length of keys and values, or of keys and hashes of values

	// MaxHashedBytes limits the values that are read for a response without values.
	MaxHashedBytes = 16 << 20
)

// SnapshotInfo describes a snapshot that the node offers.
type SnapshotInfo struct {
	Height uint64 `json:"height"`
	Format uint32 `json:"format"`
	Chunks uint32 `json:"chunks"`
	Hash   string `json:"hash"` // AppHash, lower-case hex
}

// HeightsInfo names the states that can be queried: all from Oldest to Latest. Both are 0 if there
// is none.
type HeightsInfo struct {
	Oldest int64 `json:"oldest"`
	Latest int64 `json:"latest"`
}

// Query reads from a committed state, by default the latest.
func (a *App) Query(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, error) {
	var (
		res *abci.ResponseQuery
		err *tx.Error
	)
	switch req.Path {
	case PathKey, "": // the path of queries of CometBFT's kvstore
		res, err = a.queryKey(ctx, req)
	case PathRange:
		res, err = a.queryRange(ctx, req)
	case PathNonce:
		res, err = a.queryNonce(ctx, req)
	case PathSnapshots:
		res, err = a.querySnapshots()
	case PathHeights:
		res, err = a.queryHeights()
	case PathSimulate:
		res, err = a.querySimulate(ctx, req)
	case result.Path:
		res, err = a.queryResult(ctx, req)
	case event.Path:
		res, err = a.queryEvents(ctx, req)
	default:
		err = tx.Errorf(tx.CodeUnknownPath, "path %q: there are %s, %s, %s, %s, %s, %s, %s and %s",
			shorten([]byte(req.Path)), PathKey, PathRange, PathNonce, PathSnapshots, PathHeights, PathSimulate, result.Path, event.Path)
	}
	if err != nil {
		return &abci.ResponseQuery{Code: uint32(err.Code), Codespace: tx.Codespace, Log: err.Reason, Height: a.published.Load().height}, nil //nolint:nilerr // a refusal is an answer
	}
	return res, nil
}

// at returns the version after block height (0: the latest) if it is kept. It may already be
// released: see acquire.
func (p *published) at(height int64) (committed, *tx.Error) {
	if len(p.recent) == 0 {
		return committed{}, tx.Errorf(tx.CodeUnknownHeight, "no block is committed yet: ask again later")
	}
	oldest, latest := p.recent[0].height, p.recent[len(p.recent)-1]
	if height == 0 || height == latest.height {
		return latest, nil
	}
	if height < oldest || height > latest.height { // recent has no gaps
		return committed{}, tx.Errorf(tx.CodeUnknownHeight, "height %d is not kept here: heights %d to %d are ([state] pruning_keep_recent and pruning_keep_recent_bytes in app.toml)",
			height, oldest, latest.height)
	}
	return p.recent[height-oldest], nil
}

func (a *App) queryKey(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	if len(req.Data) < 1 || len(req.Data) > avlstar.MaxKeyBytes {
		return nil, tx.Errorf(tx.CodeBadRequest, "a key has 1 to %d bytes, this one has %d", avlstar.MaxKeyBytes, len(req.Data))
	}
	at, refused := a.acquire(req.Height)
	if refused != nil {
		return nil, refused
	}
	defer at.version.Release()
	var res *abci.ResponseQuery
	err := a.state.read(ctx, at, func(v *avlstar.Version, needs *needs) (err error) {
		res, err = readKey(v, req, needs)
		return err
	})
	if err != nil {
		return nil, refusal(err, tx.CodeUnreadable)
	}
	res.Height = at.height
	return res, nil
}

// readKey reads from v. needs records nodes that are missing in v.
func readKey(v *avlstar.Version, req *abci.RequestQuery, needs *needs) (*abci.ResponseQuery, error) {
	get := v.ByKey().Get
	if req.Prove { // the proof reads the page
		get = v.Get
	}
	value, ok, err := get(req.Data)
	if err != nil {
		needs.note(err, avlstar.Want{Key: req.Data})
		return nil, err
	}
	res := &abci.ResponseQuery{Key: req.Data, Value: value, Log: "exists"}
	if !ok {
		res.Log = "does not exist"
	}
	if req.Prove {
		proof, err := v.Prove(req.Data)
		if err != nil {
			// A proof of absence contains both neighbours.
			needs.note(err, avlstar.Want{Key: req.Data}, avlstar.Want{Key: req.Data, Next: true})
			// The request was checked before, so only reading can fail.
			return nil, fmt.Errorf("no proof: %w", err)
		}
		res.ProofOps = proofOps(avlstar.OpState, req.Data, proof.State, proof.Map)
	}
	return res, nil
}

// proofOps lists the operators of a proof, from the tree up to the AppHash.
func proofOps(kind string, key, state, simpleMap []byte) *crypto.ProofOps {
	ops := &crypto.ProofOps{}
	if state != nil {
		ops.Ops = append(ops.Ops, crypto.ProofOp{Type: kind, Key: key, Data: state})
	}
	ops.Ops = append(ops.Ops, crypto.ProofOp{Type: avlstar.OpMap, Key: []byte(avlstar.MapKey), Data: simpleMap})
	return ops
}

func (a *App) queryRange(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	r, refused := decodeRange(req.Data)
	if refused != nil {
		return nil, refused
	}
	at, refused := a.acquire(req.Height)
	if refused != nil {
		return nil, refused
	}
	defer at.version.Release()
	var res *abci.ResponseQuery
	err := a.state.read(ctx, at, func(v *avlstar.Version, needs *needs) (err error) {
		res, err = answerRange(v, r, req, needs)
		return err
	})
	if err != nil {
		return nil, refusal(err, tx.CodeUnreadable)
	}
	res.Height = at.height
	return res, nil
}

// answerRange reads from v. needs records nodes that are missing in v.
func answerRange(v *avlstar.Version, r *RangeRequest, req *abci.RequestQuery, needs *needs) (*abci.ResponseQuery, error) {
	read := readRange
	if r.Reverse {
		read = readReverse
	}
	answer, err := read(v, r)
	if err != nil {
		if r.Reverse {
			needs.addStub(v, err)
		} else {
			needs.addRange(v, r.Start, r.End, rangeRound, false, err)
		}
		return nil, err
	}
	res := &abci.ResponseQuery{Key: req.Data}
	if req.Prove {
		// The response may have fewer entries than the request allows, and the proof is that of the
		// response. A response in reverse is the whole range from its last entry on.
		start, limit, rest := r.Start, max(len(answer.Entries), 1), answer.Next
		if r.Reverse && len(rest) > 0 {
			start, rest = bytes.Clone(rest), nil // it must outlive v
		}
		entries, next, proof, err := v.ProveRange(start, r.End, limit)
		if err != nil {
			// The request was checked before, so only reading can fail.
			needs.note(err)
			return nil, fmt.Errorf("no proof: %w", err)
		}
		if len(entries) != len(answer.Entries) || string(next) != string(rest) {
			return nil, tx.Errorf(tx.CodeBadRequest, "no proof: the proved range differs from the one read")
		}
		res.ProofOps = proofOps(avlstar.OpRange, start, proof.Tree, proof.Map)
	}
	value, err := answer.Marshal()
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "encode the answer: %v", err)
	}
	res.Value = value
	return res, nil
}

// decodeRange decodes a RangeRequest; an open end is nil.
func decodeRange(data []byte) (*RangeRequest, *tx.Error) {
	r := new(RangeRequest)
	if err := r.Unmarshal(data); err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "the data is not a RangeRequest: %v", err)
	}
	if again, err := r.Marshal(); err != nil || !bytes.Equal(again, data) {
		// A node must not ignore a field that it does not know.
		return nil, tx.Errorf(tx.CodeBadRequest, "the RangeRequest has a field that this node does not know, or is not in its only encoding (fields in order, no defaults): ask a newer node, or without that option")
	}
	if len(r.Start) > avlstar.MaxKeyBytes || len(r.End) > avlstar.MaxKeyBytes {
		return nil, tx.Errorf(tx.CodeBadRequest, "start has %d bytes and end has %d, at most %d are allowed", len(r.Start), len(r.End), avlstar.MaxKeyBytes)
	}
	if len(r.Start) == 0 {
		r.Start = nil
	}
	if len(r.End) == 0 {
		r.End = nil
	}
	if r.End != nil && bytes.Compare(r.Start, r.End) >= 0 {
		return nil, tx.Errorf(tx.CodeBadRequest, "start is not below end")
	}
	return r, nil
}

// page collects the entries of a response. Their keys and values may be memory of the version, so
// the response must be encoded before the version is released.
type page struct {
	answer       RangeResponse
	keysOnly     bool
	limit        int
	size, hashed int
}

func newPage(r *RangeRequest) *page {
	p := &page{keysOnly: r.KeysOnly, limit: MaxRangeEntries}
	if r.Limit > 0 {
		p.limit = int(min(r.Limit, MaxRangeEntries))
	}
	return p
}

// add appends an entry, or returns false if there is no room for it.
func (p *page) add(key, value []byte) bool {
	e := Entry{Key: key, Value: value}
	if p.keysOnly {
		hash := sha256.Sum256(value)
		e = Entry{Key: key, ValueHash: hash[:], ValueBytes: uint32(len(value))}
		p.hashed += len(value)
	}
	p.size += len(e.Key) + len(e.Value) + len(e.ValueHash)
	if len(p.answer.Entries) == p.limit || len(p.answer.Entries) > 0 && (p.size > MaxRangeBytes || p.hashed > MaxHashedBytes) {
		return false
	}
	p.answer.Entries = append(p.answer.Entries, e)
	return true
}

// readRange reads as much of the range as a response may contain.
func readRange(v *avlstar.Version, r *RangeRequest) (*RangeResponse, error) {
	p := newPage(r)
	for kv, err := range v.Ascend(r.Start, r.End) {
		if err != nil {
			return nil, err
		}
		if !p.add(kv.Key, kv.Value) {
			p.answer.Next = kv.Key
			break
		}
	}
	return &p.answer, nil
}

// readReverse does what readRange does, from the end.
func readReverse(v *avlstar.Version, r *RangeRequest) (*RangeResponse, error) {
	p := newPage(r)
	key, below := r.End, true
	if key == nil {
		key, below = bytes.Repeat([]byte{0xff}, avlstar.MaxKeyBytes), false // no key is greater
	}
	for {
		k, value, ok, err := v.ViewFloor(key, below)
		switch {
		case err != nil:
			return nil, err
		case !ok || bytes.Compare(k, r.Start) < 0:
			return &p.answer, nil
		case !p.add(k, value):
			p.answer.Next = key // the last entry
			return &p.answer, nil
		}
		key, below = k, true
	}
}

func (a *App) queryNonce(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	if len(req.Data) != AccountBytes {
		return nil, tx.Errorf(tx.CodeBadRequest, "an account has %d bytes, this one has %d", AccountBytes, len(req.Data))
	}
	if req.Height != 0 || req.Prove {
		return nil, tx.Errorf(tx.CodeBadRequest, "the next nonce counts waiting transactions, so height and proof are not supported: query the record 0x00 'n' ‖ account by %s", PathKey)
	}
	next, err := a.check.nextNonce(req.Data)
	if isMissing(err) {
		next, err = a.fetchNonce(ctx, req.Data)
	}
	if err != nil {
		return nil, refusal(err, tx.CodeUnreadable)
	}
	return &abci.ResponseQuery{Key: req.Data, Value: encodeUint64(next), Height: a.published.Load().height}, nil
}

func (a *App) querySnapshots() (*abci.ResponseQuery, *tx.Error) {
	infos := []SnapshotInfo{}
	if s := a.snapshots.Load(); s != nil {
		infos = append(infos, (*s).Offered()...)
	}
	value, err := json.Marshal(infos)
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "encode the snapshots: %v", err)
	}
	return &abci.ResponseQuery{Value: value, Height: a.published.Load().height}, nil
}

func (a *App) queryHeights() (*abci.ResponseQuery, *tx.Error) {
	var heights HeightsInfo
	if p := a.published.Load(); len(p.recent) > 0 {
		heights = HeightsInfo{Oldest: p.recent[0].height, Latest: p.height}
	}
	value, err := json.Marshal(heights)
	if err != nil {
		return nil, tx.Errorf(tx.CodeBadRequest, "encode the heights: %v", err)
	}
	return &abci.ResponseQuery{Value: value, Height: heights.Latest}, nil
}
