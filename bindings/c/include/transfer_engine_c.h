/*
 * C interface of Mooncake's transfer engine, served by handfast.
 *
 * Programs that were compiled for Mooncake's libtransfer_engine.so run with this library
 * unchanged, and the other way round: names, layouts, constants and return values are the same.
 * Never load both libraries into one process without RTLD_LOCAL: the functions have no prefix.
 *
 * Results
 *   Functions of type int return 0 for success. Failures are negative, except those of
 *   submitTransfer, submitTransferWithNotify, getTransferStatus and freeBatchID, which are
 *   positive: 1 invalid argument, 2 too many requests, 3 memory that is not registered, 4 busy,
 *   7 overlapping memory, 200 an unreachable peer or store, 201 a refused connection,
 *   202 a device, 302 registration. Negative ones are the same numbers.
 *   NULL, text that is not UTF-8 or longer than 1 MiB, and handles and ids that never existed or
 *   are gone are failures too. An engine that other machines reach without keys writes a warning
 *   to standard error at its start. With HANDFAST_LOG=1 in the environment each failure writes a line.
 *
 * Ownership
 *   Text and arrays that are passed in are copied before a function returns. Registered memory
 *   stays the caller's, and must stay mapped until unregisterLocalMemory has returned 0 for it or
 *   destroyTransferEngine has returned. Memory of a CUDA device is registered by its address, as memory
 *   of the host.
 *   What getNotifsFromEngine returns is released by freeNotifsMsgBuf, and by nothing else.
 *   An engine handle is a number, not an address: do not dereference it.
 *
 * Threads
 *   Every function may be called from any thread, at the same time as any other. A function that
 *   is running while destroyTransferEngine is called finishes; the engine closes after it.
 *   A child of fork cannot use its parent's engines; it can create its own.
 *
 * Buffers of failed transfers
 *   When a task is reported as STATUS_FAILED, nothing of the engine reads or writes its local
 *   memory any more, unless a device keeps it after the engine was destroyed, which the log says.
 */
#ifndef TRANSFER_ENGINE_C
#define TRANSFER_ENGINE_C

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Macros, so that C++ and cgo see plain integers. */
#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t

/* The segment of the engine itself. */
#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

/* An engine, and a transport of an engine. */
typedef void *transfer_engine_t;
typedef void *transport_t;

/* Moves length bytes between source, in registered memory of this process, and the absolute
 * address target_offset in the memory of a segment. */
struct transfer_request {
    int opcode;
    void *source;
    segment_id_t target_id;
    uint64_t target_offset;
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

/* Two texts, passed by value. */
struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* No function takes a segment_desc; programs that name the type compile. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_name;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

/* Starts an engine; NULL on failure. metadata_conn_string is "P2PHANDSHAKE" or the address of a
 * metadata store.
 * local_server_name is HOST or HOST:PORT, and the engine's name in a store. With a store,
 * ip_or_host_name ("" for the host of the name) is where peers reach the engine, and rpc_port its
 * port, 0 for any; without one the port is always chosen by the system. If auto_discover is 0,
 * the engine starts at installTransport; otherwise, and at the first use without that call, it
 * takes RDMA devices if there are any, and TCP if not. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string,
                                       const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port,
                                       int auto_discover);

/* Ends what is under way, closes the engine and releases its memory, batches and segments. */
void destroyTransferEngine(transfer_engine_t engine);

/* Writes the engine's address, HOST:PORT, by which peers open it; cut to buf_len - 1 bytes, and
 * always terminated. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* Checks that the devices of this machine can be listed. Starting an engine does it anyway. */
int discoverTopology(transfer_engine_t engine);

/* Chooses "tcp", or "rdma" with TCP where there is no device; NULL for other names. args may be
 * NULL; for "rdma", args[0] may be a NIC priority matrix as JSON, whose NICs are used. An engine
 * has one transport: once started, it accepts the names of those that it can use. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

/* Checks the name. The transport ends with the engine. */
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* Opens a peer by its address, or by its name in the store, and returns its id, or -1. The same
 * name has the same id until the engine is destroyed; the engine's own is LOCAL_SEGMENT. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);

/* The same, with a new look-up of the peer. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

/* Forgets what is known of the peer; the next use of the id looks it up. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

/* The same by name; names that are not open are no failure. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

/* The same for every peer. */
int syncSegmentCache(transfer_engine_t engine);

/* Nothing to do; 0. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* Registers memory. Peers can read and write it, unless remote_accessible is 0. location is "*", or
 * where the memory is, such as "cpu:0". */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);

/* Ends a registration, by its first byte. Waits for transfers that use the memory; -4 if they do
 * after 10 seconds: peers cannot reach it any more, but it must stay mapped, and the call may be
 * repeated. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

/* Registers all of the buffers, or none. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
                             size_t buffer_len, const char *location);

/* Ends every registration that can be ended, and returns the first failure. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* Makes a batch for at most batch_size requests, and returns its id: neither 0 nor above INT64_MAX,
 * and never given again. INVALID_BATCH on failure. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

/* Starts requests, of which the batch numbers the tasks in order, from 0 on. Waits for the peer's
 * answer if it is not known yet, or has restarted. After a failure none of the requests is part
 * of the batch, and nothing moves any more. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                   size_t count);

/* The same, with at least one request. Once all of them are complete, the first one's segment
 * receives the notification; nobody has to ask for the status. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
                             struct transfer_request *entries, size_t count,
                             notify_msg_t notify_msg);

/* Writes the status of a task: STATUS_WAITING, STATUS_COMPLETED or STATUS_FAILED, and for the
 * latter two the bytes that were moved for certain. Does not wait. Leaves *status alone on failure.
 * Deadlines end in STATUS_FAILED, since some programs take STATUS_TIMEOUT for success. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status);

/* Forgets a batch whose tasks have ended, completed or failed; 4 while one has not. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* Takes the notifications received since the last call. NULL, with *size 0, if there are none. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);

/* Releases the notifications of one call of getNotifsFromEngine. NULL is allowed. */
int freeNotifsMsgBuf(notify_msg_t *msg, int size);

/* Sends a notification to a segment. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* Sets *count to 0: like Mooncake's classic engine, this one has no such figures. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);

/* Writes the RDMA devices and what memory is near to each, as text or as a JSON object with
 * "local_nics" and "topology"; cut to buf_len - 1 bytes, and always terminated. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

/* The engine closes at exit, and on SIGTERM and SIGINT before they end the process; the first process of a
 * container, for which the kernel discards such signals, exits with 128 plus the signal. */
void enableGracefulShutdown(transfer_engine_t engine);

#ifdef __cplusplus
}
#define TRANSFER_ENGINE_ASSERT(condition) static_assert(condition, #condition)
#else
#define TRANSFER_ENGINE_ASSERT(condition) _Static_assert(condition, #condition)
#endif

#define TRANSFER_ENGINE_SIZE(type, size) TRANSFER_ENGINE_ASSERT(sizeof(type) == (size))
#define TRANSFER_ENGINE_OFFSET(type, field, offset) \
    TRANSFER_ENGINE_ASSERT(offsetof(type, field) == (offset))

TRANSFER_ENGINE_SIZE(transfer_engine_t, 8);
TRANSFER_ENGINE_SIZE(transport_t, 8);
TRANSFER_ENGINE_SIZE(segment_id_t, 4);
TRANSFER_ENGINE_SIZE(segment_handle_t, 4);
TRANSFER_ENGINE_SIZE(batch_id_t, 8);
TRANSFER_ENGINE_SIZE(transfer_request_t, 40);
TRANSFER_ENGINE_OFFSET(transfer_request_t, opcode, 0);
TRANSFER_ENGINE_OFFSET(transfer_request_t, source, 8);
TRANSFER_ENGINE_OFFSET(transfer_request_t, target_id, 16);
TRANSFER_ENGINE_OFFSET(transfer_request_t, target_offset, 24);
TRANSFER_ENGINE_OFFSET(transfer_request_t, length, 32);
TRANSFER_ENGINE_SIZE(transfer_status_t, 16);
TRANSFER_ENGINE_OFFSET(transfer_status_t, status, 0);
TRANSFER_ENGINE_OFFSET(transfer_status_t, transferred_bytes, 8);
TRANSFER_ENGINE_SIZE(buffer_entry_t, 16);
TRANSFER_ENGINE_OFFSET(buffer_entry_t, addr, 0);
TRANSFER_ENGINE_OFFSET(buffer_entry_t, length, 8);
TRANSFER_ENGINE_SIZE(notify_msg_t, 16);
TRANSFER_ENGINE_OFFSET(notify_msg_t, name, 0);
TRANSFER_ENGINE_OFFSET(notify_msg_t, msg, 8);
TRANSFER_ENGINE_SIZE(nic_load_stat_t, 80);
TRANSFER_ENGINE_OFFSET(nic_load_stat_t, device_name, 0);
TRANSFER_ENGINE_OFFSET(nic_load_stat_t, inflight_bytes, 64);
TRANSFER_ENGINE_OFFSET(nic_load_stat_t, ewma_bandwidth_bps, 72);
TRANSFER_ENGINE_SIZE(segment_desc_t, 48);
TRANSFER_ENGINE_OFFSET(segment_desc_t, type, 0);
TRANSFER_ENGINE_OFFSET(segment_desc_t, desc_, 8);

#undef TRANSFER_ENGINE_SIZE
#undef TRANSFER_ENGINE_OFFSET
#undef TRANSFER_ENGINE_ASSERT

#endif
