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

// maxDigits is the length of the largest number of chunks, 2^32−1, in decimal.
const maxDigits = 10

// judge decides on an offered snapshot from nothing but the offer and the app hash that the light
// client vouches for. The manifest comes with ACCEPT, the reason with everything else.
//
// CometBFT takes two offers for the same snapshot if `height:format:chunks ‖ hash ‖ metadata` is
// equal, where only the numbers have separators and chunks is decimal. It keeps the fields of the
// first to arrive and counts every sender as its sender. So the fields are judged as the one string
// that the senders share: a liar may have moved bytes between them.
func judge(s *abci.Snapshot, trusted []byte, interval int64) (offerResult, *avlstar.Manifest, error) {
	switch {
	case s == nil:
		return offerReject, nil, errors.New("no snapshot in the offer")
	case s.Format != Format:
		return offerRejectFormat, nil, fmt.Errorf("format %d, this program knows %d", s.Format, Format)
	case s.Height == 0 || s.Height > math.MaxInt64:
		return offerReject, nil, fmt.Errorf("height %d cannot be", s.Height)
	case interval > 0 && s.Height%uint64(interval) != 0:
		// Not REJECT_SENDER: if it is us who have the wrong interval, every honest peer would be
		// banned.
		return offerReject, nil, fmt.Errorf("height %d is not a multiple of the snapshot interval %d", s.Height, interval)
	case len(trusted) != hashBytes:
		return offerAbort, nil, fmt.Errorf("the chain's app hash has %d bytes, want %d: it is not a Starling chain", len(trusted), hashBytes)
	}
	digits := strconv.FormatUint(uint64(s.Chunks), 10)
	joined := bytes.Join([][]byte{[]byte(digits), s.Hash, s.Metadata}, nil)
	// At most one reading can be honest: an app hash has one manifest.
	d, manifest, err := honestReading(joined, len(digits), avlstar.Hash(trusted))
	switch {
	case err != nil:
		return offerRejectSender, nil, err
	case d != len(digits):
		return offerReject, nil, fmt.Errorf("the honest offer of %d chunks, with digits moved between the fields", len(manifest.Entries))
	}
	return offerAccept, manifest, nil
}

// honestReading finds how many leading bytes d of joined are the digits of the number of chunks, so
// that the app hash and a manifest of it with so many chunks follow. The error is the one of the
// reading that is asked for.
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

// OfferSnapshot answers the ABCI call. Whatever sync was under way is over: CometBFT makes an offer
// only when the one before has come to an end. On ACCEPT the target is empty and waits for chunks.
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
