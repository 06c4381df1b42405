package statesync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

type offerResult = abci.ResponseOfferSnapshot_Result

const (
	offerAccept       = abci.ResponseOfferSnapshot_ACCEPT
	offerAbort        = abci.ResponseOfferSnapshot_ABORT
	offerReject       = abci.ResponseOfferSnapshot_REJECT
	offerRejectFormat = abci.ResponseOfferSnapshot_REJECT_FORMAT
	offerRejectSender = abci.ResponseOfferSnapshot_REJECT_SENDER
)

const hashBytes = len(avlstar.Hash{})

// maxDigits is the decimal length of the maximum number of chunks, 2^32−1.
const maxDigits = 10

// judge decides on an offered snapshot from the offer and the app hash that the light client
// verified. It returns the manifest with ACCEPT, and the reason with any other result.
//
// CometBFT treats two offers as the same snapshot if `height:format:chunks ‖ hash ‖ metadata` is
// equal, where only the numbers have separators and chunks is decimal. It keeps the fields of the
// first offer and counts the senders of all of them as its senders. judge therefore considers only
// the joined string that the senders share: a Byzantine peer may have moved bytes between the
// fields.
func judge(s *abci.Snapshot, trusted []byte, interval int64) (offerResult, *avlstar.Manifest, error) {
	switch {
	case s == nil:
		return offerReject, nil, errors.New("no snapshot in the offer")
	case s.Format != Format:
		return offerRejectFormat, nil, fmt.Errorf("format %d, this program knows %d", s.Format, Format)
	case s.Height == 0 || s.Height > math.MaxInt64:
		return offerReject, nil, fmt.Errorf("invalid height %d", s.Height)
	case interval > 0 && s.Height%uint64(interval) != 0:
		// Not REJECT_SENDER: if the local interval is wrong, that would ban every honest peer.
		return offerReject, nil, fmt.Errorf("height %d is not a multiple of the snapshot interval %d", s.Height, interval)
	case len(trusted) != hashBytes:
		return offerAbort, nil, fmt.Errorf("the chain's app hash has %d bytes, want %d: it is not a Starling chain", len(trusted), hashBytes)
	}
	digits := strconv.FormatUint(uint64(s.Chunks), 10)
	joined := bytes.Join([][]byte{[]byte(digits), s.Hash, s.Metadata}, nil)
	// An app hash has one manifest, so at most one reading is honest.
	d, manifest, err := honestReading(joined, len(digits), avlstar.Hash(trusted))
	switch {
	case err != nil:
		return offerRejectSender, nil, err
	case d != len(digits):
		return offerReject, nil, fmt.Errorf("an honest offer of %d chunks whose digits were moved between the fields", len(manifest.Entries))
	}
	return offerAccept, manifest, nil
}

// honestReading finds the number d of leading bytes of joined that are the digits of the number of
// chunks, such that the app hash and its manifest with that many chunks follow. If there is none,
// err is the error of the reading with asked digits.
func honestReading(joined []byte, asked int, appHash avlstar.Hash) (d int, m *avlstar.Manifest, err error) {
	err = errors.New("hash and metadata do not begin with the chain's app hash")
	for d := 1; d <= maxDigits && d+hashBytes <= len(joined); d++ {
		if c := joined[d-1]; c < '0' || c > '9' {
			break
		}
		if !bytes.Equal(joined[d:d+hashBytes], appHash[:]) {
			continue
		}
		m, manifestErr := avlstar.VerifyManifest(joined[d+hashBytes:], appHash)
		if manifestErr != nil {
			if d == asked {
				err = manifestErr
			}
			continue
		}
		if strconv.Itoa(len(m.Entries)) == string(joined[:d]) {
			return d, m, nil
		}
		err = fmt.Errorf("%s chunks announced, the manifest has %d", joined[:d], len(m.Entries))
	}
	return 0, nil, err
}

// OfferSnapshot answers the ABCI call. It ends any sync in progress: CometBFT makes an offer only
// after the previous one has ended. On ACCEPT the target is empty and waits for chunks.
func (m *Manager) OfferSnapshot(_ context.Context, req *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	m.receiving.Lock()
	defer m.receiving.Unlock()
	m.opts.Metrics.snapshotOffered()
	result, err := m.offer(req)
	if result == offerAbort {
		m.log.Error("State sync cannot continue", "height", req.GetSnapshot().GetHeight(), "err", err)
	} else if err != nil {
		m.log.Info("Snapshot refused", "height", req.GetSnapshot().GetHeight(), "answer", result.String(), "reason", err)
	}
	return &abci.ResponseOfferSnapshot{Result: result}, nil
}

func (m *Manager) offer(req *abci.RequestOfferSnapshot) (offerResult, error) {
	if err := m.endSession(); err != nil {
		return offerAbort, err
	}
	switch {
	case m.ctx.Err() != nil:
		return offerAbort, errors.New("the node is stopping")
	case m.opts.Target == nil:
		return offerAbort, errors.New("this program only serves snapshots")
	}
	result, manifest, err := judge(req.Snapshot, req.AppHash, m.interval())
	if err != nil {
		return result, err
	}
	restorer, err := BeginRestore(m.opts.Target, int64(req.Snapshot.Height), manifest)
	if err != nil {
		return offerAbort, err
	}
	m.receiving.session = m.newSession(restorer)
	return offerAccept, nil
}
