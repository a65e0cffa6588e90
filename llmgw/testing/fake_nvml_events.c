/* The events of the pretended NVML; a part of fake_nvml.c, which includes it.
 *
 * What happens is a line, `CARD TYPE DATA`, appended to the file beside the library that has its
 * name and `.events` (nvml_events.py writes them). As with the true library, a set tells what
 * happened after it was made, of the cards and the types of event that were registered with it.
 */

struct event_set { char path[4096]; long read; u64 types[256]; };
struct event { handle card; u64 type, data; u32 gpu_instance, compute_instance; };

NUMBER(nvmlDeviceGetSupportedEventTypes, u64)

int nvmlEventSetCreate(struct event_set **to) {
    Dl_info self;
    const char *text;
    int code = answer(NULL, "nvmlEventSetCreate", NONE, NONE, &text);
    if (code && code != NOT_SUPPORTED) return code;
    struct event_set *set = *to = calloc(1, sizeof *set);
    if (dladdr(&sessions, &self))
        snprintf(set->path, sizeof set->path, "%s.events", self.dli_fname);
    FILE *file = fopen(set->path, "rb");
    if (!file) return OK;
    fseek(file, 0, SEEK_END), set->read = ftell(file);
    fclose(file);
    return OK;
}

int nvmlDeviceRegisterEvents(handle h, u64 types, struct event_set *set) {
    u64 supported = 0;
    nvmlDeviceGetSupportedEventTypes(h, &supported);
    if (part(h, 8) >= 0 || types & ~supported) return NOT_SUPPORTED;
    return set->types[part(h, 16)] |= types, OK;
}

static int next_event(struct event_set *set, struct event *to) {
    int found = 0, card;
    FILE *file = fopen(set->path, "rb");
    if (!file) return 0;
    fseek(file, set->read, SEEK_SET);
    while (!found && fscanf(file, "%d %llu %llu\n", &card, &to->type, &to->data) == 3) {
        set->read = ftell(file);
        found = card >= 0 && card < 256 && set->types[card] & to->type;
    }
    fclose(file);
    if (found) to->card = as_handle(card, -1, -1), to->gpu_instance = to->compute_instance = ~0u;
    return found;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *to, u32 milliseconds) {
    const char *text;
    int code = answer(NULL, "nvmlEventSetWait", NONE, NONE, &text);
    if (code && code != NOT_SUPPORTED) return code;
    for (u32 waited = 0; !next_event(set, to); waited++) {
        if (waited >= milliseconds) return TIMED_OUT;
        usleep(1000);
    }
    return OK;
}

int nvmlEventSetFree(struct event_set *set) { return free(set), OK; }
