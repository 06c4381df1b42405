package lightblocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/protowalk"
	"github.com/starling-kv/starling/internal/wire"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// The methods that a Server answers (docs/spec/transport.md#methods).
const (
	MethodLightBlock      transport.Method = 6 // header, commit and validators of a height
	MethodConsensusParams transport.Method = 7 // consensus parameters at a height
	MethodEvidence        transport.Method = 8 // evidence of misbehaviour, for the evidence pool
	// headers and commits of consecutive heights, downwards
	MethodHeaders transport.Method = 11
)

// Limits of messages, in bytes, except for MaxHeaders.
const (
	// MaxLightBlock is more than twice the size of a light block of 10,000 validators, CometBFT's
	// maximum.
	MaxLightBlock = 4 << 20
	// MaxHeaders is the maximum number of headers in one response. A server stops at headersBytes
	// but always sends at least one header: a commit of 10,000 validators alone is about 1.1 MiB.
	MaxHeaders   = 256
	headersBytes = 1 << 20
	// MaxParams is far above the size of consensus parameters, which is a few hundred bytes.
	MaxParams = 64 << 10
	// MaxEvidence is the maximum size of encoded evidence, which must fit in a request body.
	MaxEvidence = transport.MaxBody
)

// encodeHeight returns the request body for a height; 0 means the newest height.
func encodeHeight(height int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(height)) }

func decodeHeight(body []byte) (int64, error) {
	r := wire.NewReader(body)
	height := r.Height("height")
	return height, r.End()
}

func encodeLightBlock(lb *types.LightBlock) ([]byte, error) {
	pb, err := lb.ToProto()
	if err != nil {
		return nil, err
	}
	return pb.Marshal()
}

// decodeLightBlock decodes a response. It requires a complete, self-consistent light block of the
// given chain and height (0: any height). It does not check signatures.
func decodeLightBlock(body []byte, chainID string, height int64) (*types.LightBlock, error) {
	if len(body) > MaxLightBlock {
		return nil, fmt.Errorf("a light block of %d bytes is longer than %d", len(body), MaxLightBlock)
	}
	var lb *types.LightBlock
	err := lightclient.Guard(func() error {
		return walked(body, &lightBlockTable, func() (err error) {
			pb := cmtproto.LightBlock{SignedHeader: withRoom(protowalk.Count(body, 1, 2, 4))}
			if err := pb.Unmarshal(body); err != nil {
				return err
			}
			if lb, err = types.LightBlockFromProto(&pb); err != nil {
				return err
			}
			return lightclient.CheckBasic(lb, chainID, height)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("light block: %w", err)
	}
	return lb, nil
}

// withRoom returns a message to decode into, with capacity for the given number of signatures, or
// nil if the number is 0. A decoder that grows the list allocates five times its length.
func withRoom(signatures int) *cmtproto.SignedHeader {
	if signatures == 0 {
		return nil
	}
	return &cmtproto.SignedHeader{Commit: &cmtproto.Commit{Signatures: make([]cmtproto.CommitSig, 0, signatures)}}
}

// encodeRange returns the request body for the headers of count heights: from, from-1 and so on.
func encodeRange(from int64, count int) []byte {
	return binary.BigEndian.AppendUint16(encodeHeight(from), uint16(count))
}

func decodeRange(body []byte) (from int64, count int, err error) {
	r := wire.NewReader(body)
	from, count = r.Height("height"), int(r.Uint16("count"))
	if err := r.End(); err != nil {
		return 0, 0, err
	}
	if from == 0 || count == 0 || count > MaxHeaders {
		return 0, 0, fmt.Errorf("%d headers from height %d: it must be 1 to %d, from height 1 or above", count, from, MaxHeaders)
	}
	return from, count, nil
}

// appendHeader appends one block to a response: the signed header and the evidence in the block,
// each as a length (u32) and protobuf. See docs/spec/lightblocks.md#requests.
func appendHeader(to []byte, a Ancestor) ([]byte, error) {
	header, err := a.SignedHeader.ToProto().Marshal()
	if err != nil {
		return nil, err
	}
	var evidence []byte
	if len(a.Evidence) > 0 {
		pb, err := (&types.EvidenceData{Evidence: a.Evidence}).ToProto()
		if err != nil {
			return nil, err
		}
		if evidence, err = pb.Marshal(); err != nil {
			return nil, err
		}
	}
	for _, part := range [][]byte{header, evidence} {
		to = append(binary.BigEndian.AppendUint32(to, uint32(len(part))), part...)
	}
	return to, nil
}

// decodeHeaders decodes a response: the headers of consecutive heights from, from-1 and so on, at
// least 1 and at most count. Each header is self-consistent and matches its evidence. decodeHeaders
// does not check signatures or the links between headers.
func decodeHeaders(body []byte, chainID string, from int64, count int) ([]Ancestor, error) {
	r := wire.NewReader(body)
	var headers []Ancestor
	err := lightclient.Guard(func() error {
		for r.Len() > 0 {
			if len(headers) == count {
				return fmt.Errorf("there are more than %d", count)
			}
			header, evidence := r.Bytes32("header", math.MaxInt32), r.Bytes32("evidence", math.MaxInt32)
			if err := r.Err(); err != nil {
				return err
			}
			a, err := decodeHeader(header, evidence)
			if err != nil {
				return err
			}
			if err := a.SignedHeader.ValidateBasic(chainID); err != nil {
				return err
			}
			if wanted := from - int64(len(headers)); a.Height != wanted {
				return fmt.Errorf("one is of height %d, not %d", a.Height, wanted)
			}
			headers = append(headers, a)
		}
		if len(headers) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return headers, nil
}

func decodeHeader(header, evidence []byte) (a Ancestor, err error) {
	err = walked(header, &signedHeaderTable, func() (err error) {
		pb := withRoom(protowalk.Count(header, 2, 4))
		if pb == nil {
			pb = new(cmtproto.SignedHeader)
		}
		if err := pb.Unmarshal(header); err != nil {
			return err
		}
		a.SignedHeader, err = types.SignedHeaderFromProto(pb)
		return err
	})
	if err != nil {
		return a, err
	}
	if len(evidence) > 0 {
		err = walked(evidence, &evidenceListTable, func() error {
			var pb cmtproto.EvidenceList
			if err := pb.Unmarshal(evidence); err != nil {
				return err
			}
			var data types.EvidenceData
			err := data.FromProto(&pb)
			a.Evidence = data.Evidence
			return err
		})
		if err != nil {
			return a, err
		}
	}
	if hash := a.Evidence.Hash(); a.Header != nil && !bytes.Equal(hash, a.EvidenceHash) {
		return a, fmt.Errorf("the evidence has hash %X, header %d says %X", hash, a.Height, a.EvidenceHash)
	}
	return a, nil
}

func encodeParams(params types.ConsensusParams) ([]byte, error) {
	pb := params.ToProto()
	return pb.Marshal()
}

func decodeParams(body []byte) (types.ConsensusParams, error) {
	var params types.ConsensusParams
	if len(body) > MaxParams {
		return params, fmt.Errorf("consensus parameters of %d bytes are longer than %d", len(body), MaxParams)
	}
	err := lightclient.Guard(func() error {
		return walked(body, &paramsTable, func() error {
			var pb cmtproto.ConsensusParams
			if err := pb.Unmarshal(body); err != nil {
				return err
			}
			if pb.Block == nil || pb.Evidence == nil || pb.Validator == nil || pb.Version == nil {
				return errors.New("a part is missing")
			}
			params = types.ConsensusParamsFromProto(pb)
			return params.ValidateBasic()
		})
	})
	if err != nil {
		return types.ConsensusParams{}, fmt.Errorf("consensus parameters: %w", err)
	}
	return params, nil
}

func encodeEvidence(ev types.Evidence) ([]byte, error) {
	pb, err := types.EvidenceToProto(ev)
	if err != nil {
		return nil, err
	}
	return pb.Marshal()
}

// decodeEvidence decodes evidence and checks that it is self-consistent. The evidence pool must
// verify it.
func decodeEvidence(body []byte) (types.Evidence, error) {
	if len(body) > MaxEvidence {
		return nil, fmt.Errorf("evidence of %d bytes is longer than %d", len(body), MaxEvidence)
	}
	var ev types.Evidence
	err := lightclient.Guard(func() error {
		return walked(body, &evidenceTable, func() (err error) {
			var pb cmtproto.Evidence
			if err := pb.Unmarshal(body); err != nil {
				return err
			}
			if ev, err = types.EvidenceFromProto(&pb); err != nil {
				return err
			}
			return ev.ValidateBasic()
		})
	})
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	return ev, nil
}
