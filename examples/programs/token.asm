; A token with the interface of ERC-20, without the optional name and symbol. An account's balance is in the slot of its address. An
; allowance is never infinite.

TOTAL = 0x010000000000000000000000000000000000000000 ; the slot of the supply, above all addresses
; Refuse an input that is shorter than the number of bytes on the stack.
NEED = CALLDATASIZE LT @refuse JUMPI
; The word at an offset of the input, which must be an address.
ADDRESS_AT = CALLDATALOAD DUP1 160 SHR @refuse JUMPI
; The slot for the two words at the beginning of the memory.
SLOT = 64 0 KECCAK256

; constructor(uint256 supply): the account that deploys the token gets all units.
32 .args ADD CODESIZE EQ @begin JUMPI 0 0 REVERT
begin:
32 .args 0 CODECOPY 0 MLOAD                      ; supply
DUP1 TOTAL SSTORE
CALLER SSTORE
CALLER 0 event:Transfer(address,address,uint256) 32 0 LOG3
.size .start 0 CODECOPY .size 0 RETURN

.runtime
0 CALLDATALOAD 224 SHR
DUP1 transfer(address,uint256) EQ @transfer JUMPI
DUP1 balanceOf(address) EQ @balance JUMPI
DUP1 totalSupply() EQ @total JUMPI
DUP1 approve(address,uint256) EQ @approve JUMPI
DUP1 allowance(address,address) EQ @allowance JUMPI
DUP1 transferFrom(address,address,uint256) EQ @from JUMPI
DUP1 decimals() EQ @decimals JUMPI
refuse:
0 0 REVERT

balance:
36 NEED 4 ADDRESS_AT SLOAD @answer JUMP

total:
TOTAL SLOAD @answer JUMP

decimals:
0 @answer JUMP

allowance:
68 NEED 4 ADDRESS_AT 0 MSTORE 36 ADDRESS_AT 32 MSTORE SLOT SLOAD
answer:
0 MSTORE 32 0 RETURN

approve:
68 NEED 4 ADDRESS_AT                             ; spender
36 CALLDATALOAD                                  ; spender amount
CALLER 0 MSTORE DUP2 32 MSTORE DUP1 SLOT SSTORE
0 MSTORE CALLER event:Approval(address,address,uint256) 32 0 LOG3
1 @answer JUMP

transfer:
68 NEED 4 ADDRESS_AT 36 CALLDATALOAD CALLER              ; to amount from
move:
DUP1 SLOAD                                       ; to amount from balance
DUP3 DUP2 LT @poor JUMPI
DUP3 SWAP1 SUB DUP2 SSTORE                       ; to amount from
DUP3 SLOAD DUP3 ADD DUP4 SSTORE
SWAP1 0 MSTORE                                   ; to from
event:Transfer(address,address,uint256) 32 0 LOG3
1 @answer JUMP

from:
100 NEED 4 ADDRESS_AT                            ; from
DUP1 0 MSTORE CALLER 32 MSTORE SLOT              ; from slot
DUP1 SLOAD 68 CALLDATALOAD                       ; from slot allowed amount
DUP1 DUP3 LT @forbidden JUMPI
SWAP1 SUB SWAP1 SSTORE                           ; from
36 ADDRESS_AT SWAP1 68 CALLDATALOAD SWAP1        ; to amount from
@move JUMP

poor:
24 'the balance is too small' @fail JUMP
forbidden:
26 'the allowance is too small'
; Error(string), with the length and the text on the stack.
fail:
Error(string) 224 SHL 0 MSTORE 32 4 MSTORE 68 MSTORE 36 MSTORE 100 0 REVERT
