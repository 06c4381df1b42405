package lightblocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// Limits of what travels, in bytes.
const (
	// MaxLightBlock: 10,000 validators, CometBFT's maximum, have some 2 MiB with their signatures.
	MaxLightBlock = 4 << 20
	// MaxHeaders is how many headers one answer holds. A server stops at headersBytes, but for the first: a commit of 10,000 validators alone
	// has some 1.1 MiB.
	MaxHeaders   = 256
	headersBytes = 1 << 20
	// MaxParams: consensus parameters have some hundred bytes.
	MaxParams = 64 << 10
	// MaxEvidence is what a request's body may hold.
	MaxEvidence = transport.MaxBody
)

// guard turns a panic of CometBFT's types over hostile bytes into an error: some of their methods panic where only an own mistake was thought
// possible (a sum of voting powers above the maximum, a time that has no encoding).
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be processed: %v", r)
		}
	}()
	return f()
}

// encodeHeight is the body of a request about a height; 0 is the newest.
func encodeHeight(height int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(height)) }

func decodeHeight(body []byte) (int64, error) {
	if len(body) != 8 {
		return 0, fmt.Errorf("a height has 8 bytes, not %d", len(body))
	}
	height := int64(binary.BigEndian.Uint64(body))
	if height < 0 {
		return 0, fmt.Errorf("height %d is negative", height)
	}
	return height, nil
}

func encodeLightBlock(lb *types.LightBlock) ([]byte, error) {
	pb, err := lb.ToProto()
	if err != nil {
		return nil, err
	}
	return pb.Marshal()
}

// decodeLightBlock reads an answer: complete, consistent in itself, of that chain and of that height (0: of any). Signatures are not checked.
func decodeLightBlock(body []byte, chainID string, height int64) (*types.LightBlock, error) {
	if len(body) > MaxLightBlock {
		return nil, fmt.Errorf("a light block of %d bytes is longer than %d", len(body), MaxLightBlock)
	}
	var lb *types.LightBlock
	err := guard(func() error {
		var pb cmtproto.LightBlock
		if err := pb.Unmarshal(body); err != nil {
			return err
		}
		var err error
		if lb, err = types.LightBlockFromProto(&pb); err != nil {
			return err
		}
		return checkBasic(lb, chainID, height)
	})
	if err != nil {
		return nil, fmt.Errorf("light block: %w", err)
	}
	return lb, nil
}

// checkBasic is what a light block must be before a signature is looked at, wherever it comes from.
func checkBasic(lb *types.LightBlock, chainID string, height int64) error {
	if lb == nil {
		return errors.New("it is empty")
	}
	if err := lb.ValidateBasic(chainID); err != nil {
		return err
	}
	if height != 0 && lb.Height != height {
		return fmt.Errorf("it is of height %d, not %d", lb.Height, height)
	}
	return nil
}

// encodeRange is the body of a request for the headers of count heights, from downwards.
func encodeRange(from int64, count int) []byte {
	return binary.BigEndian.AppendUint16(encodeHeight(from), uint16(count))
}

func decodeRange(body []byte) (from int64, count int, err error) {
	if len(body) != 10 {
		return 0, 0, fmt.Errorf("a range of heights has 10 bytes, not %d", len(body))
	}
	if from, err = decodeHeight(body[:8]); err != nil {
		return 0, 0, err
	}
	if count = int(binary.BigEndian.Uint16(body[8:])); from == 0 || count == 0 || count > MaxHeaders {
		return 0, 0, fmt.Errorf("%d headers from height %d: it must be 1 to %d, from height 1 or above", count, from, MaxHeaders)
	}
	return from, count, nil
}

// appendHeader adds one to an answer: the signed header and the evidence in its block, each a length u32 and protobuf.
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

// decodeHeaders reads an answer: headers of the heights from downwards, at least one and at most count, each consistent in itself and with the
// evidence that it names. Whether they hang together and who signed is not checked.
func decodeHeaders(body []byte, chainID string, from int64, count int) ([]Ancestor, error) {
	part := func() ([]byte, error) {
		if len(body) < 4 || uint64(len(body)-4) < uint64(binary.BigEndian.Uint32(body)) {
			return nil, errors.New("the last one is cut off")
		}
		end := 4 + int(binary.BigEndian.Uint32(body))
		p := body[4:end]
		body = body[end:]
		return p, nil
	}
	var headers []Ancestor
	err := guard(func() error {
		for len(body) > 0 {
			if len(headers) == count {
				return fmt.Errorf("there are more than %d", count)
			}
			header, err := part()
			if err != nil {
				return err
			}
			evidence, err := part()
			if err != nil {
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
	var pb cmtproto.SignedHeader
	if err := pb.Unmarshal(header); err != nil {
		return a, err
	}
	if a.SignedHeader, err = types.SignedHeaderFromProto(&pb); err != nil {
		return a, err
	}
	if len(evidence) > 0 {
		var pb cmtproto.EvidenceList
		if err := pb.Unmarshal(evidence); err != nil {
			return a, err
		}
		var data types.EvidenceData
		if err := data.FromProto(&pb); err != nil {
			return a, err
		}
		a.Evidence = data.Evidence
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
	err := guard(func() error {
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

// decodeEvidence reads evidence that is consistent in itself. Whether it proves anything is for the evidence pool to say.
func decodeEvidence(body []byte) (types.Evidence, error) {
	if len(body) > MaxEvidence {
		return nil, fmt.Errorf("evidence of %d bytes is longer than %d", len(body), MaxEvidence)
	}
	var ev types.Evidence
	err := guard(func() error {
		var pb cmtproto.Evidence
		if err := pb.Unmarshal(body); err != nil {
			return err
		}
		var err error
		if ev, err = types.EvidenceFromProto(&pb); err != nil {
			return err
		}
		return ev.ValidateBasic()
	})
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	return ev, nil
}
