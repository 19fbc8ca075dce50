/* Serves memory, or writes to the memory of a process that does.
 *
 *   cc transfer.c $(pkg-config --cflags --libs handfast) -o transfer
 *   ./transfer serve             # prints its address, and serves until its input ends
 *   ./transfer write HOST:PORT   # writes, and reads back what it has written
 */
#include "handfast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES ((size_t)1 << 20)
#define REQUESTS 4

/* Ends the program with the last error after a call that failed. */
static void check(int32_t code, const char *call) {
    if (code < HANDFAST_OK) {
        const handfast_error *error = handfast_last_error();
        fprintf(stderr, "transfer: %s: %s, %s: %s [%s]\n", call,
                error->side == HANDFAST_PEER ? "peer" : "local", error->stage, error->text,
                error->id != NULL ? error->id : error->cause);
        exit(1);
    }
}

static handfast_engine start(void) {
    handfast_options options = {.size = sizeof options, .name = "127.0.0.1", .transport = "auto"};
    handfast_engine engine = 0;
    check(handfast_engine_start(&options, &engine), "start");
    return engine;
}

static void serve(unsigned char *memory) {
    char address[256];
    handfast_engine engine = start();
    check(handfast_memory_serve(engine, "example", memory, BYTES, NULL), "serve");
    check(handfast_engine_address(engine, address, sizeof address), "address");
    printf("%s\n", address);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    check(handfast_engine_close(engine), "close");
}

/* Moves all bytes between memory and the segment, in one batch. */
static void move(handfast_engine engine, handfast_peer peer, uint32_t direction,
                 unsigned char *memory, const handfast_segment *segment) {
    const size_t piece = BYTES / REQUESTS;
    handfast_request requests[REQUESTS];
    handfast_batch batch = 0;
    uint64_t landed = 0;
    for (size_t place = 0; place < REQUESTS; place++) {
        requests[place] = (handfast_request){.direction = direction,
                                             .local = memory + place * piece,
                                             .remote = segment->address + place * piece,
                                             .bytes = piece};
    }
    check(handfast_batch_submit(engine, peer, requests, REQUESTS, 0, &batch), "submit");
    check(handfast_batch_wait(engine, batch, HANDFAST_FOREVER, &landed), "wait");
    check(handfast_batch_free(engine, batch), "free");
    printf("%s %" PRIu64 " bytes\n", direction == HANDFAST_WRITE ? "wrote" : "read", landed);
}

static void write_to(const char *address, unsigned char *memory) {
    handfast_engine engine = start();
    handfast_peer peer = 0;
    handfast_segment segment;
    check(handfast_memory_register(engine, memory, 2 * BYTES), "register");
    check(handfast_peer_open(engine, address, &peer), "open");
    check(handfast_peer_segment(engine, peer, "example", &segment), "segment");
    for (size_t place = 0; place < BYTES; place++) {
        memory[place] = (unsigned char)(place * 7 + place / 251);
    }
    move(engine, peer, HANDFAST_WRITE, memory, &segment);
    move(engine, peer, HANDFAST_READ, memory + BYTES, &segment);
    if (memcmp(memory, memory + BYTES, BYTES) != 0) {
        fprintf(stderr, "transfer: the bytes differ\n");
        exit(1);
    }
    check(handfast_memory_unregister(engine, memory), "unregister");
    check(handfast_engine_close(engine), "close");
}

int main(int count, char **words) {
    unsigned char *memory = calloc(2, BYTES);
    if (memory != NULL && count == 2 && strcmp(words[1], "serve") == 0) {
        serve(memory);
    } else if (memory != NULL && count == 3 && strcmp(words[1], "write") == 0) {
        write_to(words[2], memory);
    } else {
        fprintf(stderr, "usage: transfer serve | write HOST:PORT\n");
        return 2;
    }
    free(memory);
    return 0;
}
