/*
 * C interface of handfast, which moves memory between machines over RDMA or TCP.
 *
 * Results
 *   Functions of type int32_t return HANDFAST_OK, HANDFAST_PENDING where they say so, or a negative
 *   code. After a negative code handfast_last_error() has the side, stage, cause, id and text.
 *   Nothing is printed, no signal handler is installed, and no exception or panic leaves a
 *   function.
 *   NULL where a value is required, text that is not UTF-8 or longer than 1 MiB, and handles that
 *   never existed or are gone are failures too.
 *
 * Handles
 *   Engines, peers and batches are numbers, neither 0 nor above INT64_MAX, which are never given
 *   again. A peer and a batch belong to the engine that returned them: another engine may refuse
 *   the number, or know it for a peer or batch of its own.
 *
 * Ownership
 *   Text, arrays and structures that are passed in are copied before a function returns. Registered
 *   memory stays the caller's, and must stay mapped until handfast_memory_unregister or
 *   handfast_engine_close has returned HANDFAST_OK for it. Memory of a CUDA device is registered by
 *   its address, as memory of the host. What handfast_last_error and handfast_version return stays the
 *   library's.
 *
 * Threads
 *   Every function may be called from any thread, at the same time as any other, but not from a
 *   signal handler. A call that waits ends when the batch is cancelled or the engine closed by
 *   another thread.
 *
 * Forks
 *   A child of fork cannot use its parent's engines: HANDFAST_FORKED. It can start its own.
 *
 * Buffers of failed transfers
 *   Once a batch has ended, completed or failed, nothing of the library reads or writes its local
 *   memory any more. HANDFAST_IN_USE of a batch after handfast_engine_close is the exception: a device
 *   keeps the memory, which must stay until the process ends. The remote field of the error is the
 *   state of the peer's memory.
 */


#ifndef HANDFAST_H
#define HANDFAST_H

/* Written by cbindgen from the sources; tests compare it. */

#include <stddef.h>
#include <stdint.h>

// The call succeeded.
#define HANDFAST_OK 0

// The batch is under way.
#define HANDFAST_PENDING 1

// An argument is invalid.
#define HANDFAST_ARGUMENT -1

// No engine has the handle.
#define HANDFAST_NO_SUCH_ENGINE -2

// No peer of the engine has the handle.
#define HANDFAST_NO_SUCH_PEER -3

// No batch of the engine has the handle.
#define HANDFAST_NO_SUCH_BATCH -4

// No registered memory holds the local bytes.
#define HANDFAST_NOT_REGISTERED -5

// Registered memory has some of the bytes.
#define HANDFAST_OVERLAP -6

// Transfers still use the memory.
#define HANDFAST_IN_USE -7

// The batch has not ended.
#define HANDFAST_UNFINISHED -8

// A limit is reached.
#define HANDFAST_LIMIT -9

// The engine belongs to the parent process.
#define HANDFAST_FORKED -10

// The batch was cancelled.
#define HANDFAST_CANCELLED -11

// The deadline of the batch passed.
#define HANDFAST_TIMEOUT -12

// The peer cannot be reached.
#define HANDFAST_PEER_LOST -13

// The peer has restarted; its memory is another.
#define HANDFAST_PEER_RESTARTED -14

// The peer serves no such memory, or not for this access.
#define HANDFAST_NOT_SERVED -15

// The engine was closed.
#define HANDFAST_CLOSED -16

// The engine failed in another way.
#define HANDFAST_FAILED -17

// The library has a bug.
#define HANDFAST_PANICKED -18

// The request reads the peer's memory.
#define HANDFAST_READ 0

// The request writes the peer's memory.
#define HANDFAST_WRITE 1

// A peer may read.
#define HANDFAST_ACCESS_READ 1

// A peer may write.
#define HANDFAST_ACCESS_WRITE 2

// The failure is of this process or machine.
#define HANDFAST_LOCAL 0

// The failure is of the peer, or of the way to it.
#define HANDFAST_PEER 1

// The peer's memory is as before.
#define HANDFAST_UNTOUCHED 0

// Some bytes may have been written; no further one will be.
#define HANDFAST_FENCED 1

// Bytes may have been written, and may be written until handfast_peer_fence succeeds.
#define HANDFAST_INDETERMINATE 2

// No limit of time.
#define HANDFAST_FOREVER UINT64_MAX

// Options of an engine. Fields that are 0 or NULL have their defaults. A program sets size to
// sizeof(handfast_options); a library with more fields takes the defaults for them, and one with
// fewer refuses fields that it does not know.
typedef struct handfast_options {
    // Size of the structure in bytes.
    size_t size;
    // HOST or HOST:PORT; required. Peers reach the engine at this host, at a port that the system
    // chooses. With a metadata store it is also the engine's name.
    const char *name;
    // The metadata store, such as "etcd://HOST:PORT" or "redis://HOST:PORT/0". Default:
    // none, peers are found by address.
    const char *metadata;
    // "tcp", "rdma", "shm", memory shared with processes of this host, or "auto": shared memory with
    // processes of this host, else RDMA where both sides have it, else TCP. Default: "auto".
    const char *transport;
    // Names of RDMA devices, separated by commas. Default: all that can be used.
    const char *devices;
    // Time limit of a batch in milliseconds. Default: that of MC_TRANSFER_TIMEOUT, or 30 s.
    uint64_t timeout_ms;
    // Keys or certificates by which the engine and its peers authenticate each other, "psk:FILE" or
    // "tls:DIRECTORY", or both with a space between: it accepts either and calls by the first. Default:
    // those of HANDFAST_AUTH; without, every host that reaches the engine is a peer.
    const char *auth;
    // 1 to serve read-only memory, and to keep memory registered, also over RDMA devices whose driver
    // lets every peer write to all of it: eRDMA in compat mode. Default:
    // HANDFAST_ACCEPT_EXPOSED_MEMORY, or 0.
    uint32_t accept_exposed_memory;
    // 1 to register memory with RDMA devices also where a fork gives registered pages away, before
    // Linux 5.12: the process must start no children. Default: HANDFAST_ACCEPT_FORKED_MEMORY, or 0.
    uint32_t accept_forked_memory;
    // 1: encrypt the bytes of lanes over TCP, and use none over RDMA; needs `auth`, and a peer that
    // does the same. 0: as HANDFAST_ENCRYPT_LANES says.
    uint32_t encrypt_lanes;
    // 1: connect RDMA queue pairs through the connection manager (librdmacm) also on RoCE and
    // InfiniBand, as iWARP devices do in any case; needs a peer that does the same. 0: as
    // HANDFAST_RDMA_CM says.
    uint32_t rdma_cm;
    // Patterns of the names of peers that may list and change the grants of this engine's memory, with *
    // for any characters, separated by commas; they need `auth`. Default: none.
    const char *administrators;
} handfast_options;

// An engine.
typedef uint64_t handfast_engine;

// A permission of peers in served memory.
typedef struct handfast_grant {
    // A pattern of the peers' names, with * for any characters. One other than "*" needs
    // handfast_options.auth, by which peers prove their names.
    const char *peers;
    // HANDFAST_ACCESS_READ, HANDFAST_ACCESS_WRITE, or both.
    uint32_t access;
    // 0.
    uint32_t reserved;
} handfast_grant;

// A peer of an engine.
typedef uint64_t handfast_peer;

// Memory that a peer serves.
typedef struct handfast_segment {
    // Address of the first byte in the peer's memory.
    uint64_t address;
    // Length in bytes.
    uint64_t bytes;
    // 1 if it can be read, else 0.
    uint32_t readable;
    // 1 if it can be written, else 0.
    uint32_t writable;
} handfast_segment;

// Bytes to move.
typedef struct handfast_request {
    // HANDFAST_READ or HANDFAST_WRITE.
    uint32_t direction;
    // 0.
    uint32_t reserved;
    // First byte here, in registered memory.
    void *local;
    // Address of the first byte in the peer's memory.
    uint64_t remote;
    // Length in bytes.
    uint64_t bytes;
} handfast_request;

// Requests that were submitted together.
typedef uint64_t handfast_batch;

// A failure.
typedef struct handfast_error {
    // The code that the call returned.
    int32_t code;
    // HANDFAST_LOCAL or HANDFAST_PEER.
    int32_t side;
    // The state of the peer's memory: HANDFAST_UNTOUCHED, HANDFAST_FENCED or
    // HANDFAST_INDETERMINATE.
    int32_t remote;
    // The step that failed, such as "connecting".
    const char *stage;
    // The cause in a word, such as "peer-lost".
    const char *cause;
    // The id for `handfast explain`, or NULL.
    const char *id;
    // The cause and its remedy as a sentence.
    const char *text;
} handfast_error;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Starts an engine and writes its handle.
//
// # Safety
// `options` is NULL, or has as many bytes as its size says, with texts that are NULL or end with a
// null byte; `engine` is NULL or can be written.
int32_t handfast_engine_start(const struct handfast_options *options, handfast_engine *engine);

// Ends what is under way, closes the engine, and releases its memory, peers and batches.
// HANDFAST_IN_USE if transfers still use memory after 10 seconds: the memory must stay mapped, and
// the call may be repeated.
int32_t handfast_engine_close(handfast_engine engine);

// Writes the engine's address, HOST:PORT, by which peers open it. HANDFAST_ARGUMENT if it does not
// fit into so many bytes with its null byte.
//
// # Safety
// `out` is NULL, or has so many bytes.
int32_t handfast_engine_address(handfast_engine engine, char *out, size_t bytes);

// Writes what the start warns of, a line each: devices that are not used, lanes over TCP in place
// of RDMA, ports that are open to everybody, variables with unknown names. Empty text if there is
// nothing. HANDFAST_ARGUMENT if it does not fit into so many bytes with its null byte.
//
// # Safety
// `out` is NULL, or has so many bytes.
int32_t handfast_engine_warnings(handfast_engine engine, char *out, size_t bytes);

// Registers memory for transfers of this engine alone. Peers cannot reach it.
//
// # Safety
// The memory stays mapped until handfast_memory_unregister or handfast_engine_close has succeeded.
int32_t handfast_memory_register(handfast_engine engine, void *start, size_t bytes);

// Registers memory that peers can read and write. They find it by name with
// handfast_peer_segment; NULL if they have its address by other means. location is where the
// memory is, such as "cpu:0"; NULL if the kernel knows.
//
// # Safety
// As of handfast_memory_register; texts are NULL, or end with a null byte.
int32_t handfast_memory_serve(handfast_engine engine,
                              const char *name,
                              void *start,
                              size_t bytes,
                              const char *location);

// Registers memory that the peers with a grant alone can reach, as handfast_memory_serve otherwise.
// Without grants no peer does until handfast_memory_grant.
//
// # Safety
// As of handfast_memory_serve; `grants` has `count` elements.
int32_t handfast_memory_serve_granted(handfast_engine engine,
                                      const char *name,
                                      void *start,
                                      size_t bytes,
                                      const char *location,
                                      const struct handfast_grant *grants,
                                      size_t count);

// Adds a grant to memory, by its first byte. Peers find it with their next batch.
//
// # Safety
// `peers` is NULL, or ends with a null byte.
int32_t handfast_memory_grant(handfast_engine engine,
                              void *start,
                              const char *peers,
                              uint32_t access);

// Takes what a grant allows from a pattern of names; another pattern that covers a peer keeps its
// own. In force on return, also for batches under way.
//
// # Safety
// As of handfast_memory_grant.
int32_t handfast_memory_revoke(handfast_engine engine,
                               void *start,
                               const char *peers,
                               uint32_t access);

// Writes the grants of memory, by its first byte, as text: a line "read PATTERN", "write PATTERN" or
// "read-write PATTERN" for each, and a null byte. `needed` is the length with that byte; a longer text
// than `size` is cut.
//
// # Safety
// `text` is NULL and `size` 0, or `size` bytes can be written; `needed` is NULL or can be written.
int32_t handfast_memory_grants(handfast_engine engine,
                               void *start,
                               char *text,
                               size_t size,
                               size_t *needed);

// Ends a registration, by its first byte, and waits until nothing touches the memory any more.
// HANDFAST_IN_USE if transfers use it after 10 seconds: peers cannot reach it any more, but it
// must stay mapped, and the call may be repeated.
int32_t handfast_memory_unregister(handfast_engine engine, void *start);

// Opens a peer by its address HOST:PORT, or by its name in the metadata store, and writes its
// handle. Waits for the peer's answer.
//
// # Safety
// `name` is NULL, or ends with a null byte; `peer` is NULL or can be written.
int32_t handfast_peer_open(handfast_engine engine, const char *name, handfast_peer *peer);

// Forgets a peer. Batches that are under way go on.
int32_t handfast_peer_close(handfast_engine engine, handfast_peer peer);

// Asks a peer for the memory that it serves under a name. HANDFAST_NOT_SERVED if there is none.
//
// # Safety
// `name` is NULL, or ends with a null byte; `segment` is NULL or can be written.
int32_t handfast_peer_segment(handfast_engine engine,
                              handfast_peer peer,
                              const char *name,
                              struct handfast_segment *segment);

// Checks that a peer answers calls.
int32_t handfast_peer_probe(handfast_engine engine, handfast_peer peer);

// Waits until no earlier failed write to the peer can land in its memory any more. Fails if the
// peer cannot be reached.
int32_t handfast_peer_fence(handfast_engine engine, handfast_peer peer);

// Writes the grants of the memory that a peer serves under a name, as handfast_memory_grants does. The
// engine is an administrator of the peer: the peer's handfast_options.administrators, or its option
// --administrators, names it.
//
// # Safety
// `segment` is NULL, or ends with a null byte; `text` is NULL and `size` 0, or `size` bytes can be
// written; `needed` is NULL or can be written.
int32_t handfast_peer_grants(handfast_engine engine,
                             handfast_peer peer,
                             const char *segment,
                             char *text,
                             size_t size,
                             size_t *needed);

// Adds a grant to the memory that a peer serves under a name, as an administrator of the peer. In force
// on return.
//
// # Safety
// `segment` and `peers` are NULL, or end with a null byte.
int32_t handfast_peer_grant(handfast_engine engine,
                            handfast_peer peer,
                            const char *segment,
                            const char *peers,
                            uint32_t access);

// Takes what a grant allows from a pattern of names in the memory that a peer serves under a name, as
// an administrator of the peer; another pattern that covers a peer keeps its own. In force on return,
// also for batches under way.
//
// # Safety
// As of handfast_peer_grant.
int32_t handfast_peer_revoke(handfast_engine engine,
                             handfast_peer peer,
                             const char *segment,
                             const char *peers,
                             uint32_t access);

// Starts requests to a peer as a batch and writes its handle. timeout_ms is the time limit of the
// batch and of this call, 0 for the engine's. Waits for the peer's answer if it has restarted, and for the
// RDMA device to register memory that it does not know. After a failure no request is under way, and remote
// of the error is the state of the peer's memory. Past a deadline the device may go on with the
// registration: handfast_memory_unregister waits for its end. A batch is released with handfast_batch_free.
//
// # Safety
// So many requests can be read; `batch` is NULL or can be written.
int32_t handfast_batch_submit(handfast_engine engine,
                              handfast_peer peer,
                              const struct handfast_request *requests,
                              size_t count,
                              uint64_t timeout_ms,
                              handfast_batch *batch);

// Starts a batch as handfast_batch_submit, once a CUDA stream has done the work that it has at the
// call: a CUstream or cudaStream_t, or NULL for the default stream of the device that has the first
// request's memory. The call waits for the stream within timeout_ms, or for 60 seconds; work that is
// added to the stream meanwhile is not waited for. HANDFAST_ARGUMENT without a driver of CUDA.
//
// # Safety
// So many requests can be read; the stream exists during the call, and is not captured; `batch` is
// NULL or can be written.
int32_t handfast_batch_submit_after(handfast_engine engine,
                                    handfast_peer peer,
                                    const struct handfast_request *requests,
                                    size_t count,
                                    uint64_t timeout_ms,
                                    void *stream,
                                    handfast_batch *batch);

// Waits for the end of a batch, for timeout_ms at most, HANDFAST_FOREVER without a limit.
// HANDFAST_OK when every byte is at its destination, HANDFAST_PENDING when the batch is still
// under way; it goes on then. A failure of the batch is the failure of this call. At the end the
// bytes that have landed for certain are written, unless landed_bytes is NULL.
//
// # Safety
// `landed_bytes` is NULL or can be written.
int32_t handfast_batch_wait(handfast_engine engine,
                            handfast_batch batch,
                            uint64_t timeout_ms,
                            uint64_t *landed_bytes);

// Returns the state of a batch as handfast_batch_wait, without waiting.
//
// # Safety
// `landed_bytes` is NULL or can be written.
int32_t handfast_batch_status(handfast_engine engine, handfast_batch batch, uint64_t *landed_bytes);

// Writes for each request of a batch, in their order, the bytes that have landed for certain.
// count is the number of the batch's requests. Requests that are under way have 0.
//
// # Safety
// So many numbers can be written.
int32_t handfast_batch_landed(handfast_engine engine,
                              handfast_batch batch,
                              uint64_t *bytes,
                              size_t count);

// Cancels what is under way in a batch, which ends soon. A batch that has ended stays as it is.
int32_t handfast_batch_cancel(handfast_engine engine, handfast_batch batch);

// Releases a batch that has ended; HANDFAST_UNFINISHED while it has not.
int32_t handfast_batch_free(handfast_engine engine, handfast_batch batch);

// Returns the failure of this thread's last call that returned a negative code; NULL if there is
// none. It is valid until the thread's next call that fails.
const struct handfast_error *handfast_last_error(void);

// Returns the version of the library, such as "0.1.0".
const char *handfast_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HANDFAST_H */
