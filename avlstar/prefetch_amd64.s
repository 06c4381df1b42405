//go:build !purego

#include "textflag.h"

// func prefetchNode(l *link, i *image)
TEXT ·prefetchNode(SB), NOSPLIT, $0-16
	MOVQ l+0(FP), AX
	MOVQ i+8(FP), BX
	PREFETCHT0 (AX)
	PREFETCHT0 (BX)
	PREFETCHT0 64(BX)
	RET

// func prefetchLink(l *link)
TEXT ·prefetchLink(SB), NOSPLIT, $0-8
	MOVQ l+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchRecord(b *byte)
TEXT ·prefetchRecord(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	RET

// func prefetchNewNode(l *link, i *image)
TEXT ·prefetchNewNode(SB), NOSPLIT, $0-16
	MOVQ l+0(FP), AX
	MOVQ i+8(FP), BX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08             // PREFETCHW (AX), which the assembler does not know
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0b             // PREFETCHW (BX)
	BYTE $0x0f; BYTE $0x0d; BYTE $0x4b; BYTE $0x40 // PREFETCHW 64(BX)
	RET

// func prefetchNewRecord(b *byte)
TEXT ·prefetchNewRecord(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08             // PREFETCHW (AX)
	BYTE $0x0f; BYTE $0x0d; BYTE $0x48; BYTE $0x40 // PREFETCHW 64(AX)
	RET
