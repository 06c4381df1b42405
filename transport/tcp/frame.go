package tcp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/starling-kv/starling/transport"
)

// version is the protocol version.
const version = 1

// The hello is the first message of both sides after the TLS handshake. The dialer sends its hello
// first.
//
//	hello = "starling" ‖ version:u16be ‖ len:u16be ‖ body
//	body  = status:u8 ‖ window:u16be ‖ len:u8 ‖ chain id        (in version 1)
const (
	magic        = "starling"
	helloHeader  = len(magic) + 4
	maxHelloBody = 256
)

// Statuses of a hello. A dialer sends helloOK. After any other status the server closes the
// connection.
const (
	helloOK           = 0
	helloWrongVersion = 1
	helloWrongChain   = 2
	helloBusy         = 3
)

type hello struct {
	version uint16
	status  byte
	window  uint16 // maximum number of calls under way that the sender accepts
	chainID string
}

func (h hello) encode() []byte {
	b := append(make([]byte, 0, helloHeader+4+len(h.chainID)), magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(h.chainID)))
	b = append(b, h.status)
	b = binary.BigEndian.AppendUint16(b, h.window)
	return append(append(b, byte(len(h.chainID))), h.chainID...)
}

// readHello reads a hello. If it has another version, only that version is returned, without an
// error.
func readHello(r io.Reader) (hello, error) {
	var head [helloHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hello{}, err
	}
	h := hello{version: binary.BigEndian.Uint16(head[8:])}
	n := binary.BigEndian.Uint16(head[10:])
	if string(head[:8]) != magic || n > maxHelloBody {
		return hello{}, fmt.Errorf("%w: not a hello", transport.ErrProtocol)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, err
	}
	if h.version != version {
		return h, nil
	}
	if len(body) < 4 || int(body[3]) != len(body)-4 || len(body)-4 > MaxChainID {
		return hello{}, fmt.Errorf("%w: a hello of the wrong length", transport.ErrProtocol)
	}
	h.status, h.window, h.chainID = body[0], binary.BigEndian.Uint16(body[1:]), string(body[4:])
	return h, nil
}

// The header of a frame. All bytes after the hellos are frames.
//
//	frame = type:u8 ‖ id:u64be ‖ len:u32be ‖ payload
const frameHeader = 13

// Types of frames. Every request has exactly one ending: the last byte of its answer, or an error.
// This includes cancelled requests. The ending settles the id.
const (
	frameRequest = 1 // method:u8 ‖ body; ids of a connection ascend
	frameCancel  = 2 // the answer is no longer needed
	frameAnswer  = 3 // total:u64be ‖ the first bytes
	frameMore    = 4 // the next bytes
	frameError   = 5 // code:u8
	framePing    = 6 // asks for a pong
	framePong    = 7
	// With a path that bypasses TLS; see Sides.
	frameLent    = 8  // slot:u32be ‖ length:u32be ‖ method:u8 ‖ body; a request
	frameLost    = 9  // from either side: the path is lost, and with it all requests with slots
	frameWritten = 10 // total:u64be; the answer is in the slot
	frameCarried = 11 // see carried; a request whose body bypasses TLS
)

// lentHeader is the number of bytes in a frameLent before the method.
const lentHeader = 8

// maxPiece is the maximum number of bytes of an answer in one frame. The next frame may belong to
// another answer.
const maxPiece = 64 << 10

// Codes of frameError.
const (
	codeGone      = 1
	codeBusy      = 2
	codeRefused   = 3
	codeFailed    = 4
	codeCancelled = 5 // only if the request was cancelled
	codeBodyLost  = 6 // only if the body was sent bypassing TLS
)

type header struct {
	kind byte
	id   uint64
	n    int // length of the payload
}

func appendHeader(b []byte, kind byte, id uint64, n int) []byte {
	b = binary.BigEndian.AppendUint64(append(b, kind), id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// appendStart appends the beginning of a frameAnswer; n bytes of the answer must follow.
func appendStart(b []byte, id uint64, total, n int) []byte {
	return binary.BigEndian.AppendUint64(appendHeader(b, frameAnswer, id, 8+n), uint64(total))
}

// readHeader reads the header of a frame and checks that the type allows the length of the payload.
func readHeader(br *bufio.Reader) (header, error) {
	b, err := br.Peek(frameHeader)
	if err != nil {
		if len(b) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return header{}, err
	}
	h := header{b[0], binary.BigEndian.Uint64(b[1:]), int(binary.BigEndian.Uint32(b[9:]))}
	var least, most int
	switch h.kind {
	case frameRequest:
		least, most = 1, 1+transport.MaxBody
	case frameAnswer:
		least, most = 8, 8+maxPiece
	case frameMore:
		least, most = 1, maxPiece
	case frameError:
		least, most = 1, 1
	case frameLent:
		least, most = lentHeader+1, lentHeader+1+transport.MaxBody
	case frameWritten:
		least, most = 8, 8
	case frameCarried:
		least, most = carriedHeader+lentHeader+1, carriedHeader+lentHeader+1
	case frameCancel, framePing, framePong, frameLost:
	default:
		return h, fmt.Errorf("%w: unknown frame type %d", transport.ErrProtocol, h.kind)
	}
	if h.n < least || h.n > most {
		return h, fmt.Errorf("%w: frame of type %d has %d bytes", transport.ErrProtocol, h.kind, h.n)
	}
	_, err = br.Discard(frameHeader)
	return h, err
}

// readTotal reads the total of a frameAnswer.
func readTotal(br *bufio.Reader) (int, error) {
	b, err := br.Peek(8)
	if err != nil {
		return 0, unexpected(err)
	}
	total := binary.BigEndian.Uint64(b)
	if total > math.MaxInt64 {
		return 0, fmt.Errorf("%w: an answer of 2^63 bytes or more", transport.ErrProtocol)
	}
	_, err = br.Discard(8)
	return int(total), err
}

// pass reads n bytes and calls use with them as they arrive, at most a buffer at a time. If use is
// nil, they are discarded.
func pass(br *bufio.Reader, n int, use func([]byte)) error {
	for n > 0 {
		if _, err := br.Peek(1); err != nil {
			return unexpected(err)
		}
		b, _ := br.Peek(min(n, br.Buffered()))
		if use != nil {
			use(b)
		}
		n -= len(b)
		if _, err := br.Discard(len(b)); err != nil {
			return err
		}
	}
	return nil
}

// unexpected returns err, but io.ErrUnexpectedEOF instead of io.EOF, because more bytes were
// expected.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// codeOf returns the code for an error.
func codeOf(err error) byte {
	switch {
	case errors.Is(err, errBodyLost):
		return codeBodyLost
	case errors.Is(err, transport.ErrGone):
		return codeGone
	case errors.Is(err, transport.ErrBusy):
		return codeBusy
	case errors.Is(err, transport.ErrRefused):
		return codeRefused
	}
	return codeFailed
}

// errorOf returns the error for a code; nil if the code is unknown.
func errorOf(code byte) error {
	switch code {
	case codeGone:
		return transport.ErrGone
	case codeBusy:
		return transport.ErrBusy
	case codeRefused:
		return transport.ErrRefused
	case codeFailed:
		return transport.ErrFailed
	}
	return nil
}
